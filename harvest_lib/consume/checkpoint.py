"""The checkpoint of a consumer's shard: all that the shard's next owner needs to continue after the last commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING

from harvest_lib.errors import CheckpointError
from harvest_lib.record.last_read import LastRead
from harvest_lib.sequencing.producer_state import ProducerState
from harvest_lib.sequencing.publisher import Intent


class ShardId(NamedTuple):
    """Identity of a shard: a partition of a topic, read by a consumer. `consumer` is the name of the consumer and of
    its consumer group."""

    consumer: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.consumer}/{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The checkpoint of a shard, saved in the same transaction as the shard's state.

    Messages before `offset` were read, and `producers` is the state of the sequencer at that offset. `intents` are the
    acknowledgements of published messages: they are written to Kafka after the checkpoint is saved, and written again
    after a crash. `topic_id` is Kafka's own id of the topic; it is empty if unknown. A recreated topic with the same
    name has another id. `last` identifies the last record before `offset`: a log that lost its end and grew again does
    not have this record.
    """

    shard: ShardId
    topic_id: str = ""
    offset: int = OFFSET_BEGINNING
    producers: Sequence[ProducerState] = ()
    intents: Sequence[Intent] = ()
    last: LastRead | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the checkpoint as values for JSON."""
        return {
            "shard": list(self.shard),
            "topic_id": self.topic_id,
            "offset": self.offset,
            "producers": [each.to_json() for each in self.producers],
            "intents": [each.to_json() for each in self.intents],
            **({} if self.last is None else {"last": list(self.last)}),
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "Checkpoint":
        """Return the checkpoint from a value that `to_json` returned. Raises KeyError, TypeError or ValueError for any
        other value."""
        return cls(
            shard=ShardId(*value["shard"]),
            topic_id=value["topic_id"],
            offset=value["offset"],
            producers=tuple(map(ProducerState.of_json, value["producers"])),
            intents=tuple(map(Intent.of_json, value["intents"])),
            last=LastRead.of_json(value.get("last")),
        )

    def require(self, shard: ShardId, topic_id: str) -> None:
        """Raise CheckpointError if the checkpoint belongs to another shard, or to a topic with another id."""
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
