"""Checks and loads the library in C, and declares its functions.

The library is used if it was built, if psycopg and confluent-kafka are compiled, and if their libpq and librdkafka have
known versions. The library calls functions of the clients' own copies of libpq and librdkafka, so that no second copy
is loaded. These functions are found through the extension module of each client.
"""

import ctypes
import importlib
import os
import sys
from collections.abc import Sequence
from ctypes import CDLL, POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any, Literal

import confluent_kafka
import psycopg

from harvest_lib.errors import ConfigError

VARIABLE = "HARVEST_IMPL"
FILE = Path(__file__).with_name("hand_over.so")

_ELF, _ELF_HEADER = b"\x7fELF", Struct("=40xQ10xHH2x")
"""Three fields in the header of a 64-bit ELF file describe the file's last table: its offset, the length of an entry,
and the number of entries."""
_OLDEST_LIBRDKAFKA, _FIRST_UNKNOWN_LIBRDKAFKA = 0x02000000, 0x03000000
_OLDEST_LIBPQ = 140000
_PSYCOPG = {"binary": "psycopg_binary.pq", "c": "psycopg_c.pq"}
_OF_LIBPQ = ("PQntuples", "PQgetvalue", "PQgetlength", "PQgetisnull")
_OF_LIBRDKAFKA = (
    "rd_kafka_producev",
    "rd_kafka_headers_new",
    "rd_kafka_header_add",
    "rd_kafka_headers_destroy",
    "rd_kafka_topic_name",
    "rd_kafka_conf_interceptor_add_on_new",
    "rd_kafka_interceptor_add_on_acknowledgement",
)
INTERFACE = 5
"""Number that `harvest_interface` has to return. A library that returns another number is from another build."""
_TOPIC_BYTES, MOST_TOPICS = 250, 64
MOST_FAILURES = 64
MALFORMED = 1_000_000
"""Error of `harvest_send` for a row that the library does not understand."""
LATE = 1_000_001
"""Error of `harvest_send` for a row that is not handed over because the time limit has passed."""


class Summary(ctypes.Structure):
    """Result of `harvest_summarize`."""

    _fields_ = (
        ("bytes", c_int64),
        ("largest", c_int64),
        ("plain", c_int32),
        ("topics", c_int32),
        ("first_of", c_int32 * MOST_TOPICS),
    )


class OfTopic(ctypes.Structure):
    """The number of an error or of a partition, and the topic of the error or partition."""

    _fields_ = (("number", c_int32), ("topic", ctypes.c_char * _TOPIC_BYTES))


class EncodedInto(ctypes.Structure):
    """Result of `harvest_encode`."""

    _fields_ = (
        ("data", c_void_p),
        ("size", c_int64),
        ("topics", c_int32),
        ("has_keys", c_int32),
        ("first_of", c_int32 * MOST_TOPICS),
    )


class WrappingOfKind(ctypes.Structure):
    """Bytes that `harvest_wrap` puts before and after messages of a kind."""

    _fields_ = (
        ("before", c_char_p),
        ("after", c_char_p),
        ("before_bytes", c_int64),
        ("after_bytes", c_int64),
        ("field", c_int32),
    )


class HeadOfKind(ctypes.Structure):
    """Parts of an entry that `harvest_pack` writes in addition to offset and data."""

    _fields_ = (("key", c_char_p), ("timestamp", c_uint64), ("key_bytes", c_uint32), ("mode", c_uint8))


class NativeTarget(ctypes.Structure):
    """Topic and timestamp of records that `harvest_produce` hands over."""

    _fields_ = (("topic", c_char_p), ("timestamp", c_int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """The implementation that hands rows over, and the reason why it is used. `library` is None for Python."""

    name: Literal["native", "python"]
    reason: str
    library: CDLL | None = None
    is_asked_for: bool = False
    """True if HARVEST_IMPL requires this implementation."""


@cache
def implementation() -> Implementation:
    """Return the implementation that this process uses. Raises ConfigError if HARVEST_IMPL names an implementation that
    is unavailable."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in {"", "python", "native"}:
        raise ConfigError(
            f"the environment has {VARIABLE}={wanted!r}, which is neither `python` nor `native`",
            next_step="correct or unset it",
        )
    if wanted == "python":
        return Implementation(name="python", reason=f"{VARIABLE}=python")
    try:
        library = _load()
    except (OSError, AttributeError, ImportError, _Unfit) as error:
        if wanted:
            raise ConfigError(
                f"{VARIABLE}=native is not available here: {error}",
                next_step="install a C compiler, then the package again from its source; or unset the variable",
            ) from error
        return Implementation(name="python", reason=str(error))
    return Implementation(
        name="native", reason="the library in C was built", library=library, is_asked_for=bool(wanted)
    )


class _Unfit(Exception):
    """The library cannot be used, for the reason in the text."""


def _load() -> CDLL:
    if not sys.platform.startswith("linux"):
        raise _Unfit("it is for Linux alone")
    if not FILE.exists():
        raise _Unfit("it was not built: the package was installed without a C compiler, or the compiler refused it")
    if psycopg.pq.__impl__ not in _PSYCOPG:
        raise _Unfit("psycopg is not compiled: psycopg[binary] or psycopg[c]")
    if not _is_whole(FILE):
        raise _Unfit(f"{FILE} is not a whole library")
    kafka = CDLL(str(importlib.import_module(confluent_kafka.libversion.__module__).__file__))
    libpq = CDLL(str(importlib.import_module(_PSYCOPG[psycopg.pq.__impl__]).__file__))
    if not _OLDEST_LIBRDKAFKA <= kafka.rd_kafka_version() < _FIRST_UNKNOWN_LIBRDKAFKA:
        raise _Unfit(f"it does not know librdkafka {confluent_kafka.libversion()[0]}")
    if libpq.PQlibVersion() < _OLDEST_LIBPQ:
        raise _Unfit(f"it does not know libpq {psycopg.pq.version()}")
    library = CDLL(str(FILE))
    if library.harvest_interface() != INTERFACE:
        raise _Unfit("it is of another version of harvest_lib")
    _declare(library)
    if not library.harvest_bind(*_addresses([(libpq, _OF_LIBPQ), (kafka, _OF_LIBRDKAFKA)])):
        raise _Unfit("it is of another version of harvest_lib")
    return library


def _is_whole(file: Path) -> bool:
    """Return True if the file of a library is not truncated. Loading a truncated library would kill the process."""
    with file.open("rb") as opened:
        header = opened.read(_ELF_HEADER.size)
    if len(header) < _ELF_HEADER.size or not header.startswith(_ELF):
        return False
    begin, length, count = _ELF_HEADER.unpack(header)
    return bool(begin + length * count <= file.stat().st_size)


def _addresses(named: Sequence[tuple[CDLL, Sequence[str]]]) -> "tuple[ctypes.Array[c_void_p], int]":
    found = [ctypes.cast(getattr(library, name), c_void_p) for library, names in named for name in names]
    return (c_void_p * len(found))(*found), len(found)


def _declare(library: CDLL) -> None:
    library.harvest_bind.argtypes = [POINTER(c_void_p), c_int]
    library.harvest_take_newest.restype = c_void_p
    for of_sender in (library.harvest_let_go, library.harvest_track, library.harvest_note_keys):
        of_sender.argtypes, of_sender.restype = [c_void_p], None
    library.harvest_failed_keys.argtypes = [c_void_p, POINTER(c_void_p)]
    library.harvest_failures.argtypes = [c_void_p, POINTER(OfTopic)]
    library.harvest_places.argtypes = [c_void_p, POINTER(OfTopic), c_int]
    rows: tuple[Any, ...] = (c_void_p, c_int, c_void_p, c_int, c_int)
    library.harvest_summarize.argtypes, library.harvest_summarize.restype = [*rows, POINTER(Summary)], None
    library.harvest_ascends.argtypes = rows
    library.harvest_id.argtypes, library.harvest_id.restype = [c_void_p, c_int, c_int], c_int64
    library.harvest_ids.argtypes, library.harvest_ids.restype = [*rows, POINTER(c_int64)], None
    library.harvest_keys.argtypes, library.harvest_keys.restype = [*rows, c_void_p], c_int64
    library.harvest_traceparents.argtypes = [*rows, c_void_p, c_int]
    library.harvest_send.argtypes = [
        *(c_void_p, *rows),
        *(c_char_p, c_uint64, c_uint64, c_int64, c_int64, POINTER(c_int)),
    ]
    library.harvest_produce.argtypes = [
        *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        *(c_void_p, POINTER(NativeTarget), c_int, c_int, POINTER(c_int)),
    ]
    library.harvest_encode.argtypes = [
        *(c_void_p, c_int, c_int, c_int, c_char_p, c_int64),
        *(c_void_p, c_void_p, c_void_p, POINTER(EncodedInto)),
    ]
    library.harvest_free.argtypes, library.harvest_free.restype = [c_void_p], None
    library.harvest_wrap.argtypes = [
        *(c_void_p, c_void_p, c_void_p, c_char_p, c_int, c_int),
        *(POINTER(WrappingOfKind), c_void_p, c_void_p, c_void_p),
    ]
    library.harvest_pack.argtypes = [
        *(c_void_p, c_void_p, c_char_p, POINTER(HeadOfKind), c_int, c_int),
        *(c_uint64, c_void_p, c_int64, POINTER(c_int64)),
    ]
