"""The checkpoint of a shard of a consumer: all that its next owner needs to continue exactly after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING

from harvest_lib.errors import CheckpointError
from harvest_lib.record.last_read import LastRead
from harvest_lib.sequencing.publisher import Intent
from harvest_lib.sequencing.sequencer import ProducerState


class ShardId(NamedTuple):
    """A partition of a topic, as a consumer reads it. `consumer` names the consumer and its consumer group."""

    consumer: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.consumer}/{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The checkpoint, kept in the same transaction as its state.

    Messages before `offset` were read, `producers` is the state of the sequencer by then, `intents` are the
    acknowledgements of published messages, which are written, again if need be, once the checkpoint is kept. `topic_id`
    is Kafka's own id of the topic, and differs for a recreated topic of the same name; empty if it is unknown. `last`
    identifies the last record before the offset: a log that lost its end, and grew again, lacks that record.
    """

    shard: ShardId
    topic_id: str = ""
    offset: int = OFFSET_BEGINNING
    producers: Sequence[ProducerState] = ()
    intents: Sequence[Intent] = ()
    last: LastRead | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the checkpoint as values for JSON. Clocks are text: some readers of JSON cannot hold 64 bits."""
        return {
            "shard": list(self.shard),
            "topic_id": self.topic_id,
            "offset": self.offset,
            "producers": [
                [f"{each.producer:x}", str(each.acknowledged), each.begin, str(each.newest), str(each.ack)]
                for each in self.producers
            ],
            "intents": [each.to_json() for each in self.intents],
            **({} if self.last is None else {"last": list(self.last)}),
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "Checkpoint":
        """Return a checkpoint that `to_json` converted. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            shard=ShardId(*value["shard"]),
            topic_id=value["topic_id"],
            offset=value["offset"],
            producers=tuple(
                ProducerState(
                    producer=int(producer, 16), acknowledged=int(clock), begin=begin, newest=int(newest), ack=int(ack)
                )
                for producer, clock, begin, newest, ack in value["producers"]
            ),
            intents=tuple(map(Intent.of_json, value["intents"])),
            last=LastRead.of_json(value.get("last")),
        )

    def require(self, shard: ShardId, topic_id: str) -> None:
        """Raise CheckpointError unless the checkpoint is of this shard, and of the topic with this id."""
        if self.shard != shard:
            raise CheckpointError(
                f"the checkpoint that is kept for {shard} belongs to another shard",
                evidence=f"it names the shard {self.shard}",
                next_step="its rows were copied or renamed: give the consumer a name that was never used, or put the "
                "right checkpoint back from a backup",
            )
        if self.topic_id and topic_id and self.topic_id != topic_id:
            raise CheckpointError(
                f"the topic {shard.topic!r} was recreated since {shard} last read it",
                evidence=f"its id was {self.topic_id}, and is {topic_id}: offset {self.offset} means another message",
                next_step="read the new topic under another name of the consumer, or delete the row of this shard, "
                "state and all, to start over",
            )
