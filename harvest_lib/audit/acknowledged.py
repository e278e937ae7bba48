"""Filter of records with an id of `harvest_lib.consume`: the records that readers of committed messages see, once each.

Records that wait for their acknowledgement are held without their values.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Generic, TypeVar

from harvest_lib.consume import Message, Replay, Sequencer, read_uncommitted

Record = TypeVar("Record")


class Acknowledged(Generic[Record]):
    """Filter of all partitions. `observe` makes a record of a client's message that is read again."""

    def __init__(self, settings: Mapping[str, object], observe: Callable[[Any], Record]) -> None:
        self._settings, self._observe = settings, observe
        self._sequencers: dict[tuple[str, int], Sequencer] = defaultdict(Sequencer)

    def take(self, record: Record, place: tuple[str, int], offset: int, message_id: bytes | None) -> Iterator[Record]:
        """Take a record as it stands in the log of its partition, and return the records that it commits."""
        for found in self._sequencers[place].take((Message(offset, message_id, record),)):
            if isinstance(found, Replay):
                yield from self._again(found, place)
            else:
                yield from (message.record for message in found)

    def _again(self, replay: Replay, place: tuple[str, int]) -> Iterator[Record]:
        batches = read_uncommitted(self._settings, *place, begin=replay.begin, end=replay.end)
        for message in replay.pick(chain.from_iterable(batches)):
            yield self._observe(message.record)
