"""The versions that `harvest version` prints.

The client libraries' versions come from the shared libraries in the wheels of the clients, which is quicker than to
import the clients. A client that uses a library of the system is imported.
"""

import ctypes
import os
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec


def librdkafka_version() -> str:
    """Return the version of librdkafka, as `2.16.0`."""
    if (library := _bundled("confluent-kafka", "librdkafka")) is not None:
        library.rd_kafka_version_str.restype = ctypes.c_char_p
        text: bytes = library.rd_kafka_version_str()
        return text.decode()
    from confluent_kafka import libversion

    return str(libversion()[0])


def libpq_version() -> str:
    """Return the version of libpq, as `18.6`."""
    # As psycopg chooses: its C implementation if that is installed, unless PSYCOPG_IMPL says otherwise.
    is_bundled = os.environ.get("PSYCOPG_IMPL", "binary") == "binary" and find_spec("psycopg_c") is None
    if is_bundled and (library := _bundled("psycopg-binary", "libpq")) is not None:
        number: int = library.PQlibVersion()
        return f"{number // 10_000}.{number % 10_000}"
    from psycopg import pq

    return pq.version_pretty(pq.version())


def _bundled(distribution: str, library: str) -> ctypes.CDLL | None:
    try:
        found = [file for file in files(distribution) or () if file.name.startswith(library) and ".so" in file.name]
        return ctypes.CDLL(str(found[0].locate())) if found else None
    except (PackageNotFoundError, OSError):
        return None
