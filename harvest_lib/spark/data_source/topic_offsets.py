"""Offsets of a stream of topics, and the parts of a read that tasks get. Each executor loads this module, so it is
small. No I/O.

    {"orders": {"id": "vPeOCWypqUOSepEvx0cbog",                  Kafka's id of the topic
                "0": {"offset": 1021,                            all messages before this offset were read
                      "last": [1020, 1356999300, "1f…"],         the last record before it (`LastRead`)
                      "producers": [["a9…", "71…", 990, …]],     senders of `delivery: sequenced` (`ProducerState`)
                      "begin": 0,                                where the query began to read the partition
                      "unsearched": 990}}}                       instead of producers, with the option `sequenced` off

The offset before the first micro-batch is empty. If a partition is not in an offset, because it is read first in the
micro-batch after it, `begin` of the next offset says where it begins. Producers are the state of a `Sequencer`: with
them, a reader that begins at the offset returns pending messages that are acknowledged later, and drops repeated ones.
With the option `sequenced` off, the tasks of earlier micro-batches have found no such sender before `unsearched`, and
the driver has not read from there on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition

from harvest_lib.errors import PositionLost
from harvest_lib.record.last_read import LastRead
from harvest_lib.sequencing.producer_state import ProducerState
from harvest_lib.sequencing.sequencer import Sequencer
from harvest_lib.spark.data_source.windows import backwards

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in the log of a partition: the offset of the next message, and the state of the sequencer there. `begin`
    is where the query began to read the partition. If `unsearched` is not None, the messages between this offset and
    `offset` are not in the state."""

    begin: int
    offset: int
    last: LastRead | None = None
    producers: Sequence[ProducerState] = ()
    unsearched: int | None = None

    @classmethod
    def first(cls, offset: int) -> "Position":
        """Return the position at which the query begins to read a partition."""
        return cls(begin=offset, offset=offset)

    def at(self, sequencer: Sequencer) -> "Position":
        """Return the position after the messages that a sequencer has taken."""
        return Position(
            begin=self.begin, offset=sequencer.offset, last=sequencer.last, producers=tuple(sequencer.states())
        )

    def sequencer(self) -> Sequencer:
        """Return a sequencer that continues here."""
        return Sequencer(offset=self.offset, states=self.producers, last=self.last)

    def to_json(self) -> dict[str, Any]:
        """Return the position as values for JSON."""
        return {
            "offset": self.offset,
            **({} if self.last is None else {"last": list(self.last)}),
            **({"producers": [each.to_json() for each in self.producers]} if self.producers else {}),
            "begin": self.begin,
            **({} if self.unsearched is None else {"unsearched": self.unsearched}),
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "Position":
        """Return the position from its form in JSON."""
        return cls(
            begin=value["begin"],
            offset=value["offset"],
            last=LastRead.of_json(value.get("last")),
            producers=tuple(map(ProducerState.of_json, value.get("producers", ()))),
            unsearched=value.get("unsearched"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffset:
    """An offset of a stream: a position in each partition, and Kafka's id of each topic, which a recreated topic does
    not have. Before the first micro-batch there are no positions."""

    positions: Mapping[Place, Position]
    ids: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the offset as values for JSON."""
        found: dict[str, dict[str, Any]] = {topic: {"id": each} for topic, each in sorted(self.ids.items())}
        for (topic, partition), position in sorted(self.positions.items()):
            found[topic][str(partition)] = position.to_json()
        return found

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "TopicOffset":
        """Return the offset from its form in JSON."""
        return cls(
            positions={
                (topic, int(partition)): Position.of_json(position)
                for topic, partitions in value.items()
                for partition, position in partitions.items()
                if partition != "id"
            },
            ids={topic: partitions["id"] for topic, partitions in value.items()},
        )

    def require_same(self, ids: Mapping[str, str]) -> None:
        """Raise PositionLost if a topic has another id now."""
        for topic, now in ids.items():
            before = self.ids.get(topic, now)
            if before != now:
                raise lost(f"the topic {topic!r} was recreated", f"its id was {before}, and is {now}")

    def is_read(self, target: "TopicOffset") -> bool:
        """Return True if all messages before the target were read."""
        return all(
            place in self.positions and self.positions[place].offset >= wanted.offset
            for place, wanted in target.positions.items()
        )


@dataclass(frozen=True)
class TopicPartition(InputPartition):
    """The part of a read for one task: the messages of a partition from `begin` on, to before the offset `end`."""

    topic: str
    partition: int
    begin: Position
    end: int


def parts_between(start: TopicOffset, end: TopicOffset) -> list[TopicPartition]:
    """Return a part for each partition with messages between two offsets. Raises CheckpointError if `end` is before
    `start`."""
    found = []
    for (topic, partition), until in end.positions.items():
        begin = start.positions.get((topic, partition), Position.first(until.begin))
        if until.offset < begin.offset:
            raise backwards(f"{until.offset} comes after {begin.offset} in partition {partition} of {topic!r}")
        if until.offset > begin.offset:
            found.append(TopicPartition(topic, partition, begin, until.offset))
    return found


def shares(available: Mapping[Place, int], limit: int | None) -> dict[Place, int]:
    """Divide a limit of messages among partitions, in proportion to the available messages of each."""
    total = sum(available.values())
    if limit is None or total <= limit:
        return dict(available)
    given = {place: limit * count // total for place, count in available.items()}
    most_left = sorted(available, key=lambda place: limit * available[place] % total, reverse=True)
    for place in most_left[: limit - sum(given.values())]:
        given[place] += 1
    return given


def lost(cause: str, evidence: str) -> PositionLost:
    """Return the error for messages that the log does not have any more, and that were not read."""
    return PositionLost(
        cause,
        evidence=evidence,
        next_step="read a batch again; a stream cannot continue: compare what it has read with the outbox, keep "
        "records for longer (`retention.ms`), and start the query with a new checkpoint",
    )
