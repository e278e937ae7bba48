"""Filter for records with a message id of `harvest_lib.consume`. It yields exactly the records that a reader of
committed messages gets, each of them once.

Records that are not acknowledged yet are stored without their values.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Generic, TypeVar

from harvest_lib.consume import Message, Replay, Sequencer, read_uncommitted

Record = TypeVar("Record")


class Acknowledged(Generic[Record]):
    """Filter for the records of all partitions. Some messages have to be read from Kafka again: `observe` converts
    these messages of the client to records."""

    def __init__(self, settings: Mapping[str, object], observe: Callable[[Any], Record]) -> None:
        self._settings, self._observe = settings, observe
        self._sequencers: dict[tuple[str, int], Sequencer] = defaultdict(Sequencer)

    def take(self, record: Record, place: tuple[str, int], offset: int, message_id: bytes | None) -> Iterator[Record]:
        """Process the next record in the log of the partition `place`. Yield the records that this record commits."""
        for found in self._sequencers[place].take((Message(offset, message_id, record),)):
            if isinstance(found, Replay):
                yield from self._again(found, place)
            else:
                yield from (message.record for message in found)

    def _again(self, replay: Replay, place: tuple[str, int]) -> Iterator[Record]:
        batches = read_uncommitted(self._settings, *place, begin=replay.begin, end=replay.end)
        for message in replay.pick(chain.from_iterable(batches)):
            yield self._observe(message.record)
