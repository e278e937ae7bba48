"""Recorder of native hand-over: records that the C library sends without a producer in Python, and their results.

Neither the client's producer nor the C library is changed. The recorder reads the rows before the library sends them. A
second interceptor, in Python, records acknowledgements; it is added when the library adds its own interceptor. A file
beside the history has the number of records that each call of the library took.
"""

import ctypes
import json
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from ctypes import CDLL, CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaException

from harvest_lib.native import NativeRows, NativeSender, error_of, library, sender
from harvest_lib.record import ID, VALUE

Outbound = Callable[[str, int, str], None]
"""Called with a record before it is handed over: leader id, outbox id, event."""
Place = tuple[str | None, int | None, int | None]
"""Topic, partition and offset of a record; None where unknown."""
Landed = Callable[[tuple[str, int], Place, str | None], None]
"""Called with the result of a send: leader id and outbox id, the record's position, and the reason of a failure."""

_ADDS_INTERCEPTOR = "rd_kafka_interceptor_add_on_acknowledgement"
_NAME = b"chaos"
_SWITCH_SECONDS = 0.0005
"""librdkafka's thread reports records one by one. Each report waits this long for the interpreter's lock."""
_STAMP_VERSION_BYTES = 1
_PURGE_QUEUE, _PURGE_IN_FLIGHT, _PURGE_NON_BLOCKING = 1, 2, 4
"""Flags of `rd_kafka_purge`."""


class _Message(ctypes.Structure):
    """`rd_kafka_message_t`."""

    _fields_ = (
        ("error", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("length", c_size_t),
        ("key", c_void_p),
        ("key_length", c_size_t),
        ("offset", c_int64),
        ("opaque", c_void_p),
    )


_OnAcknowledgement = CFUNCTYPE(c_int, c_void_p, POINTER(_Message), c_void_p)
_AddInterceptor = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_void_p)


def count_handed_over(histories: Path) -> int:
    """Return the number of records that the processes with a history in this folder handed over natively."""
    return sum(int(line) for file in histories.glob("*.native") for line in file.read_text().split())


class NativeRecorder:
    """Records the sends of all native senders of this process from now on; `provider` makes their producers."""

    def __init__(self, history: Path, provider: object, outbound: Outbound, landed: Landed) -> None:
        self._outbound, self._landed = outbound, landed
        self._counts = history.with_suffix(".native").open("a", buffering=1)
        self._sent: dict[int, dict[str, deque[tuple[str, int]]]] = defaultdict(lambda: defaultdict(deque))
        self._made = threading.local()  # handle of the last producer of this thread
        self._kafka: CDLL
        # librdkafka keeps both callbacks until the process ends.
        self._add, self._on_acknowledgement = _AddInterceptor(self._added), _OnAcknowledgement(self._heard)
        sys.setswitchinterval(_SWITCH_SECONDS)
        recorder = self

        class Recorded(NativeSender):
            def __init__(self, of: CDLL, address: int) -> None:
                super().__init__(of, address)
                self._producer: int = recorder._made.producer

            def send(self, rows: NativeRows, **named: Any) -> tuple[int, int]:
                return recorder._send(super().send, self._producer, rows, **named)

        self._resolve = library._addresses  # noqa: SLF001 - where the functions of librdkafka are resolved
        vars(library)["_addresses"] = self._resolved
        vars(sender).update(NativeSender=Recorded, Producer=provider)

    def made(self, make: Callable[[], Any]) -> Any:
        """Return the producer that `make` makes. The `purge` of a recorded producer is replaced, because the client's
        `purge` keeps the interpreter's lock while it waits for threads of librdkafka whose reports need this lock."""
        self._made.producer = None
        producer = make()
        if (handle := self._made.producer) is not None:
            producer.purge = partial(self._purge, handle)
        return producer

    def _purge(self, handle: int, *, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        flags = _PURGE_QUEUE * in_queue | _PURGE_IN_FLIGHT * in_flight | _PURGE_NON_BLOCKING * (not blocking)
        if code := self._kafka.rd_kafka_purge(handle, flags):
            raise KafkaException(error_of(code))

    def _resolved(self, named: Sequence[tuple[CDLL, Sequence[str]]]) -> Any:
        """Resolve the functions that the library calls. `_added` replaces the function that adds an interceptor."""
        found, count = self._resolve(named)
        names = [name for _, some in named for name in some]
        self._kafka = next(each for each, some in named if _ADDS_INTERCEPTOR in some)
        self._kafka.rd_kafka_topic_name.argtypes = [c_void_p]
        self._kafka.rd_kafka_topic_name.restype = c_char_p
        self._kafka.rd_kafka_purge.argtypes = [c_void_p, c_int]
        self._really_add = _AddInterceptor(found[names.index(_ADDS_INTERCEPTOR)] or 0)
        found[names.index(_ADDS_INTERCEPTOR)] = ctypes.cast(self._add, c_void_p)
        return found, count

    def _added(self, producer: int, name: bytes, call: int, opaque: int) -> int:
        self._made.producer = producer
        own = ctypes.cast(self._on_acknowledgement, c_void_p)
        return int(self._really_add(producer, name, call, opaque) or self._really_add(producer, _NAME, own, None))

    def _send(
        self, send: Callable[..., tuple[int, int]], producer: int, rows: NativeRows, **named: Any
    ) -> tuple[int, int]:
        leader_id = str(UUID(bytes=named["stamp"][_STAMP_VERSION_BYTES:]))
        identified = [(row[ID], json.loads(row[VALUE] or "{}")["event"]) for row in rows]
        for outbox_id, event in identified:
            self._outbound(leader_id, outbox_id, event)
            self._sent[producer][event].append((leader_id, outbox_id))
        went, code = send(rows, **named)
        for _, event in identified[went:]:
            self._sent[producer][event].pop()
        if went:
            self._counts.write(f"{went}\n")
        return went, code

    def _heard(self, producer: int, pointer: Any, _opaque: object) -> int:
        message = pointer.contents
        if message.opaque or not message.payload:
            return 0  # a producer in Python sent it and gets its report
        event = json.loads(ctypes.string_at(message.payload, message.length)).get("event")
        if sent := self._sent[producer].get(event):
            topic = self._kafka.rd_kafka_topic_name(message.topic).decode()
            reason = error_of(message.error).str() if message.error else None
            offset = message.offset if message.offset >= 0 and not reason else None
            self._landed(sent.popleft(), (topic, message.partition, offset), reason)
        return 0
