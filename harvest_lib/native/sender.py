"""The native side of a producer: it hands rows over in C, and reports the failures and partitions of their records."""

import logging
import os
from collections.abc import Callable, Mapping
from ctypes import CDLL, byref, c_int, c_void_p, string_at
from functools import cache
from types import MappingProxyType
from typing import Any
from weakref import finalize

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest_lib.native import library as built
from harvest_lib.native.library import LATE, MALFORMED, MOST_FAILURES, OfTopic, implementation
from harvest_lib.native.pieces import NativeRecords
from harvest_lib.native.rows import NativeRows

_log = logging.getLogger(__name__)

_PLUGINS = "plugin.library.paths"
_OTHER_COPY = "librdkafka did not load the library that this process has: its file was replaced meanwhile"
_MOST_PLACES = 256


class NativeSender:
    """The native sender of a producer. The producer must stay open during `send`. The sender's memory in C is freed
    when the producer is closed and this object is gone."""

    def __init__(self, library: CDLL, sender: int) -> None:
        self._library, self._sender = library, sender
        self._error = c_int(0)
        self._is_closed = False
        self._process = os.getpid()
        self._failures = (OfTopic * MOST_FAILURES)()
        finalize(self, library.harvest_let_go, sender)

    def send(
        self,
        rows: NativeRows,
        *,
        stamp: bytes | None,
        producer_id: int = 0,
        clock: int = 0,
        timestamp_ms: int = 0,
        until: float = 0.0,
    ) -> tuple[int, int]:
        """Hand rows over up to the first row that is not taken. Return two values: the number of rows that were handed
        over, and the error of the next row (librdkafka's number, `MALFORMED` or `LATE`; 0 if all rows were taken).

        `stamp` is the beginning of the record header. With a `producer_id` each record gets a message id, with clocks
        from `clock` on. All records get the timestamp `timestamp_ms`; with 0 librdkafka sets it. `MALFORMED` means that
        only Python may understand the row. From `until` on, in boot seconds, rows fail with `LATE`; 0 means no limit.
        The limit is checked before each row, so a process that is frozen past `until` hands over at most one more row.
        """
        self._require_usable()
        times = timestamp_ms, int(until * 1e9)
        went = self._library.harvest_send(
            self._sender, *rows.view, stamp, producer_id, clock, *times, byref(self._error)
        )
        return went, self._error.value

    def produce(self, records: NativeRecords, begin: int) -> tuple[int, int]:
        """Hand records over, from the index `begin` on. Return the same two values as `send`."""
        self._require_usable()
        keys, values = records.keys, records.values
        went = self._library.harvest_produce(
            self._sender,
            *(keys.memory, keys.bounds, values.memory, values.bounds),
            *(records.kinds, records.targets, begin, len(values), byref(self._error)),
        )
        return went, self._error.value

    def _require_usable(self) -> None:
        if self._is_closed:
            raise RuntimeError("the producer was closed")  # its handle is invalid
        if os.getpid() != self._process:
            raise RuntimeError("the producer is of the process that was forked")  # its threads may hold locks

    def producer_closed(self) -> None:
        """Note that `close` of the producer has returned, so that no further report comes. After this, call only the
        `take_…` methods."""
        if not self._is_closed:
            self._is_closed = True
            self._library.harvest_let_go(self._sender)

    def track(self) -> None:
        """From now on, note the partitions in which records arrive, for `take_places`."""
        self._library.harvest_track(self._sender)

    def take_failures(self) -> list[tuple[KafkaError, str]]:
        """Return the failures since the last call, in order of time. Each pair of error and topic is returned once."""
        count = self._library.harvest_failures(self._sender, self._failures)
        return [(error_of(each.number), each.topic.decode()) for each in self._failures[:count]]

    def note_keys(self) -> None:
        """From now on, note the keys of records that fail, for `take_failed_keys`."""
        self._library.harvest_note_keys(self._sender)

    def take_failed_keys(self) -> set[bytes] | None:
        """Return the keys of the records that failed since the last call; None if some of the keys are unknown."""
        keys = c_void_p()
        count = self._library.harvest_failed_keys(self._sender, byref(keys))
        try:
            return {*string_at(keys, count).split(b"\0")[:-1]} if count >= 0 else None
        finally:
            self._library.harvest_free(keys)

    def take_places(self) -> list[tuple[str, int]]:
        """Return the topics and partitions in which records arrived since the last call. A pair may occur twice."""
        found: list[tuple[str, int]] = []
        some = (OfTopic * _MOST_PLACES)()
        while count := self._library.harvest_places(self._sender, some, _MOST_PLACES):
            if count < 0:
                raise MemoryError("where records arrived could not be noted")
            found += [(each.topic.decode(), each.number) for each in some[:count]]
        return found


UNCONFIRMED = KafkaError._INCONSISTENT
"""Error of a record that the client took for delivered, though no broker has confirmed the record: see decision
0019."""


def error_of(code: int) -> KafkaError:
    """Return the error with librdkafka's number `code`."""
    if code == UNCONFIRMED:
        return KafkaError(code, "the client took a record for delivered that no broker has confirmed")
    return KafkaError(code, fatal=code == KafkaError._FATAL)


def make_with_sender(
    provider: Callable[[dict[str, Any]], Any],
    settings: Mapping[str, Any],
    native_settings: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Any, NativeSender | None]:
    """Make a producer, and its native sender if available. There is no native sender, and Python hands rows over, if
    the library is not in use, if `provider` is not confluent-kafka's `Producer`, or if librdkafka cannot load the
    library. If librdkafka cannot load it and HARVEST_IMPL requires the native implementation, the error is raised.

    Only a producer with a native sender gets `native_settings`, because they are safe only if each record is reported.
    """
    chosen = implementation()
    library = chosen.library
    if library is None or provider is not Producer:
        return provider(dict(settings)), None
    plugins = ";".join(filter(None, [str(settings.get(_PLUGINS, "")), str(built.FILE)]))
    _release_newest(library)
    try:
        producer = provider({**settings, **native_settings, _PLUGINS: plugins})
    except KafkaException as error:
        if chosen.is_asked_for:
            raise
        producer = provider(dict(settings))  # raises if the user's own settings are the cause
        _say_unavailable(error.args[0].str())
        return producer, None
    sender = library.harvest_take_newest()
    if not sender:
        _say_unavailable(_OTHER_COPY)
        producer.close()
        return provider(dict(settings)), None
    return producer, NativeSender(library, sender)


def _release_newest(library: Any) -> None:
    """Free the sender of a producer that could not be made, if there is one. librdkafka does not use that sender."""
    if sender := library.harvest_take_newest():
        library.harvest_let_go(sender)
        library.harvest_let_go(sender)


@cache
def _say_unavailable(reason: str) -> None:
    """Log, once for each reason, why Python hands rows over although the library is there."""
    _log.warning("native_hand_over_unavailable", extra={"reason": reason})


def close_with_sender(producer: Any, sender: NativeSender | None) -> None:
    """Close a producer, and tell its sender that the producer is closed. Raises the client's errors."""
    producer.close()
    if sender is not None:
        sender.producer_closed()


__all__ = ["LATE", "MALFORMED", "UNCONFIRMED", "NativeSender", "error_of", "make_with_sender"]
