"""A producer's native side: rows are handed over by it, and what became of them is heard."""

from collections.abc import Callable, Mapping
from ctypes import CDLL, byref, c_int
from typing import Any
from weakref import finalize

from confluent_kafka import KafkaError, Producer

from harvest_lib.native import library as built
from harvest_lib.native.library import MALFORMED, MOST_FAILURES, TopicAndNumber, implementation
from harvest_lib.native.rows import NativeRows

_PLUGINS = "plugin.library.paths"
_MOST_PLACES = 256


class NativeSender:
    """Of one producer, which has to outlive `send`. What it takes in C is given back once that is closed."""

    def __init__(self, library: CDLL, sender: int) -> None:
        self._library, self._sender = library, sender
        self._error = c_int(0)
        self._failures = (TopicAndNumber * MOST_FAILURES)()
        finalize(self, library.harvest_let_go, sender)

    def send(self, rows: NativeRows, *, stamp: bytes | None, producer_id: int = 0, clock: int = 0) -> tuple[int, int]:
        """Hand rows over up to the first that is not taken; return how many went, and librdkafka's error or 0.

        `stamp` is the beginning of the record header; with a `producer_id` each has a message id, of clocks from
        `clock` on. An error of `MALFORMED` is of a row that only Python may understand.
        """
        where = rows.result, rows.first, rows.start, rows.stop
        went = self._library.harvest_send(self._sender, *where, stamp, producer_id, clock, byref(self._error))
        return went, self._error.value

    def producer_closed(self) -> None:
        """Note that `close` of the producer has returned: nothing more will be heard. Once, and last but `take_…`."""
        self._library.harvest_let_go(self._sender)

    def track(self) -> None:
        """Note from now on which partitions records arrive at."""
        self._library.harvest_track(self._sender)

    def take_failures(self) -> list[tuple[KafkaError, str]]:
        """Return what has failed since the last call, in that order: each error and topic once."""
        count = self._library.harvest_failures(self._sender, self._failures)
        return [(error_of(each.number), each.topic.decode()) for each in self._failures[:count]]

    def take_places(self) -> list[tuple[str, int]]:
        """Return the topics and partitions that records arrived at, since the last call at least."""
        found: list[tuple[str, int]] = []
        some = (TopicAndNumber * _MOST_PLACES)()
        while count := self._library.harvest_places(self._sender, some, _MOST_PLACES):
            if count < 0:
                raise MemoryError("where records arrived could not be noted")
            found += [(each.topic.decode(), each.number) for each in some[:count]]
        return found


def error_of(code: int) -> KafkaError:
    """Return an error by librdkafka's number."""
    return KafkaError(code, fatal=code == KafkaError._FATAL)  # noqa: SLF001 - librdkafka's own code


def make_with_sender(
    provider: Callable[[dict[str, Any]], Any], settings: Mapping[str, Any]
) -> tuple[Any, NativeSender | None]:
    """Make a producer, and its native side if that can be had. What a wrapper has to see, Python hands over."""
    library = implementation().library
    if library is None or provider is not Producer:
        return provider(dict(settings)), None
    plugins = ";".join(filter(None, [str(settings.get(_PLUGINS, "")), str(built.FILE)]))
    library.harvest_take_newest()  # of one that could not be made
    producer = provider({**settings, _PLUGINS: plugins})
    sender = library.harvest_take_newest()
    return producer, NativeSender(library, sender) if sender else None


def close_with_sender(producer: Any, sender: NativeSender | None) -> None:
    """Close a producer. What it raises is the client's."""
    producer.close()
    if sender is not None:
        sender.producer_closed()


__all__ = ["MALFORMED", "NativeSender", "error_of", "make_with_sender"]
