"""The second proof of NELI: the group's coordinator accepts an offset commit of this member.

The age of a proof counts from the time at which the commit was sent. With each commit a member publishes its pool and
its trouble.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaError, TopicPartition

from harvest_lib.kafka_client import KafkaConsumer
from harvest_lib.leadership.candidacy import NEVER, Candidacy
from harvest_lib.leadership.group_members import spoken
from harvest_lib.leadership.pool import Pool
from harvest_lib.leadership.trouble import Trouble


class Membership:
    """Offset commits of a member for its leader topic, and the time of the newest accepted commit. A single thread uses
    it."""

    def __init__(self, topic: str, trouble: Trouble) -> None:
        self.accepted_at = NEVER
        """Time at which the newest accepted commit was sent, in boot seconds."""
        self._topic = topic
        self._trouble = trouble
        self._sent: deque[float] = deque()

    @property
    def unanswered(self) -> int:
        """Return the number of commits without an answer."""
        return len(self._sent)

    def commit(self, consumer: KafkaConsumer, pool: Pool | None, assigned: Iterable[Candidacy], now: float) -> None:
        """Commit the read positions in the partitions of candidacies, with a description of this process and `pool`."""
        # The current position is committed because goharvest starts from the committed offset. If goharvest started
        # from 0, it would read old heartbeats for long.
        trouble = self._trouble.text
        said = spoken(pool, consumer.memberid() or "", trouble) if pool is not None else ""
        positions = [(candidacy.shard, candidacy.position) for candidacy in assigned]
        if said and trouble:  # this member may never receive a message, and yet has to publish the trouble
            positions = [(shard, self._end(consumer, shard) if at is None else at) for shard, at in positions]
        offsets = [TopicPartition(self._topic, shard, at, said) for shard, at in positions if at is not None]
        if offsets:
            consumer.commit(offsets=offsets, asynchronous=True)
            self._sent.append(now)

    def answered(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        """Note the answer to the oldest commit without an answer."""
        sent_at = self._sent.popleft() if self._sent else NEVER
        if error is None and all(partition.error is None for partition in partitions):
            self.accept(sent_at)
            return
        for each in (error, *(partition.error for partition in partitions)):
            if each is not None:
                self._trouble.note("commit", each)

    def accept(self, sent_at: float) -> None:
        """Note that a commit that was sent at `sent_at` was accepted."""
        self.accepted_at = max(self.accepted_at, sent_at)

    def _end(self, consumer: KafkaConsumer, shard: int) -> int | None:
        """Return the end offset of a partition, if the client knows it."""
        known = consumer.get_watermark_offsets(TopicPartition(self._topic, shard), cached=True)
        return known[1] if known is not None and known[1] >= 0 else None
