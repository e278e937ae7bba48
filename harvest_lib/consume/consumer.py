"""A consumer: processes that divide the partitions of topics among them. The owner of a partition runs it as a shard.

A consumer group of Kafka assigns each partition to an owner. The group alone does not stop a process that was frozen,
or that has not noticed yet that it lost the partition. The fence of the store stops such a process: only one owner can
commit.

Promises
- A thread owns an assigned partition until the partition is revoked. The thread then commits and ends, within
  END_SECONDS. If a user's function takes longer, the next owner's fence refuses the transaction.
- A shard that fails begins again from its checkpoint, with growing pauses. Each failure is logged. Shards of other
  partitions are not affected.
- No message is read through the group. The group's committed offsets are copies, for monitoring of the lag.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import Consumer as KafkaClient
from confluent_kafka.admin import AdminClient

from harvest_lib.certificates import Certificates
from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.consume.checkpoint import ShardId
from harvest_lib.consume.group_errors import lasting
from harvest_lib.consume.group_settings import group_settings
from harvest_lib.consume.limits import ShardLimits
from harvest_lib.consume.ownership import OwnedShard, Ownership, ShardCounts
from harvest_lib.consume.reader import Isolation, read_committed
from harvest_lib.consume.retention import RetentionWatch
from harvest_lib.consume.room import ShardRoom
from harvest_lib.consume.shard import Shard
from harvest_lib.consume.store import Store
from harvest_lib.consume.transaction import Application, require_functions
from harvest_lib.errors import ConfigError, TopicMissing
from harvest_lib.kafka_client import answer_of, client_settings, count_error, is_refusal, refused_settings, translate
from harvest_lib.kafka_offsets import Place
from harvest_lib.sequencing.message_id import Clock, new_producer_id
from harvest_lib.sequencing.publisher import Publisher
from harvest_lib.telemetry.harmless import guard_loggers

_log = logging.getLogger(__name__)


END_SECONDS = 10.0
"""Limit of the wait for the end of a shard."""
_POLL_SECONDS = 0.1
_COMMIT_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_SESSION_MS = 45_000  # librdkafka's default
_GROUP_ONLY = {"session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "group.instance.id"}
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}


class Consumer:
    """A member of the consumer group. Start any number of members, on any number of machines."""

    def __init__(
        self,
        application: Application,
        *,
        name: str,
        topics: Sequence[str],
        settings: Mapping[str, object],
        store: Callable[[ShardId], Store],
        limits: ShardLimits | None = None,
        isolation: Isolation = "read_committed",
    ) -> None:
        """`name` names the group and the checkpoints: a consumer with a new name reads from the start. `settings` are
        settings of librdkafka. `isolation` is Kafka's isolation level, for topics that are written in Kafka
        transactions. Raises ConfigError if `topics` is a string."""
        if isinstance(topics, str):
            raise ConfigError("`topics` must be a list", field="topics", next_step=f"write `topics=[{topics!r}]`")
        self._application, self._name, self._topics = application, name, list(topics)
        self._group_settings = settings
        self._settings = {setting: value for setting, value in settings.items() if setting not in _GROUP_ONLY}
        self._store, self._isolation = store, isolation
        self._limits = limits or ShardLimits()
        self._room = ShardRoom()
        self._owned: dict[ShardId, Ownership] = {}
        self.session_seconds = float(str(settings.get("session.timeout.ms", _SESSION_MS))) / 1000
        """Time after which the group removes a silent member. After this time the member knows that it is removed."""
        self._counting = threading.Lock()
        self._at_work: set[Ownership] = set()  # also of revoked partitions, until their shards end
        self._done: dict[str, ShardCounts] = {}  # topic -> counts of the shards that have ended
        self.fenced = 0
        """Number of times that a shard was fenced because another owner had begun."""
        self.retention = RetentionWatch(self._settings, self._positions)
        """Watches how soon Kafka may remove records that the consumer has not read."""
        self.certificates = Certificates(self._settings)
        """Certificates in the configuration of the Kafka clients."""
        self._has_joined = False
        self.trouble = ""
        """The reason why the consumer has not joined the group; empty if it has joined, or if the reason is unknown."""
        self.turned_at: float | None = None
        """Time of the last poll of the group, in boot seconds; None if the consumer does not run."""

    def run(self, stopping: threading.Event) -> None:
        """Consume until a stop is requested. Raises TopicMissing and KafkaAccessDenied. Raises ConfigError for a bad
        setting, or if functions of the application cannot be called. Raises KafkaError if the group refuses this
        member, for example because the other members are programs of another kind."""
        guard_loggers()
        self._room.begin()
        own = group_settings(self._group_settings, self._name)
        require_functions(self._application)
        with refused_settings("settings"):
            group: Any = KafkaClient(own)
        over = threading.Event()
        try:
            self.certificates.begin(over, time.time)
            group.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            commit_at = 0.0
            while not stopping.is_set():
                self.turned_at = boot_seconds()
                self._check_error(group.poll(_POLL_SECONDS))
                self._tend()
                if boot_seconds() >= commit_at:
                    commit_at = boot_seconds() + _COMMIT_SECONDS
                    self._commit_offsets(group)
        finally:
            over.set()
            self.turned_at, self._has_joined, self.trouble = None, False, ""
            self._end(list(self._owned))
            group.close()

    def _tend(self) -> None:
        """Begin due shards while there is room, in the order in which they became due. For each due shard that still
        has to wait, end one shard that has had its turn."""
        owned = list(self._owned.values())
        at_work = sum(each.is_at_work for each in owned)
        due = sorted((each for each in owned if each.is_due), key=lambda each: each.begin_at)
        while due and self._room.admits(at_work):
            due.pop(0).begin()
            at_work += 1
        self._room.log_waiting(len(due), at_work, sum(each.opened_at is not None for each in owned))
        served = sorted((each for each in owned if each.has_had_its_turn), key=lambda each: each.began_at)
        for each in served[: len(due)]:
            each.end_turn()

    def no_room(self, ownership: Ownership, error: BaseException) -> bool:
        """Return True if a shard ended because the database has no connection left for it."""
        others = [each for each in self._owned.copy().values() if each is not ownership and each.is_at_work]
        opened = [at for each in others if (at := each.opened_at) is not None]
        has_opened = any(at > ownership.began_at for at in opened)
        return self._room.refused(error, len(others), len(opened), has_opened=has_opened)

    # -- the group

    def _assigned(self, group: Any, partitions: list[TopicPartition]) -> None:
        self._has_joined, self.trouble = True, ""
        places = [TopicPartition(each.topic, each.partition, OFFSET_END) for each in partitions]
        group.incremental_assign(places)
        group.pause(places)
        for each in partitions:
            shard = ShardId(self._name, each.topic, each.partition)
            self._owned[shard] = ownership = Ownership(self, shard)
            with self._counting:
                self._at_work.add(ownership)

    def _revoked(self, group: Any, partitions: list[TopicPartition]) -> None:
        self._end(self._shards(partitions))
        group.incremental_unassign(partitions)

    def _lost(self, group: Any, partitions: list[TopicPartition]) -> None:
        """End the shards of lost partitions without a wait. Other members may own the partitions now, so only the fence
        of the store can decide who commits."""
        self._has_joined = False
        self._end(self._shards(partitions), seconds=0.0)
        group.incremental_unassign(partitions)

    def _shards(self, partitions: Iterable[TopicPartition]) -> list[ShardId]:
        return [ShardId(self._name, each.topic, each.partition) for each in partitions]

    def _end(self, shards: Iterable[ShardId], seconds: float | None = None) -> None:
        owned = [self._owned.pop(shard) for shard in shards if shard in self._owned]
        for each in owned:
            each.stop()
        deadline = Deadline(END_SECONDS if seconds is None else seconds)
        for each in owned:
            each.await_end(deadline.remaining_seconds)

    def _check_error(self, message: Any) -> None:
        error = message.error() if message is not None else None
        if error is None:
            return
        count_error(error)
        if error.code() in _MISSING:
            raise TopicMissing(
                f"a topic of {', '.join(self._topics)} does not exist", evidence=error.str(), next_step="create it"
            )
        if (refused := lasting(error, self._name)) is not None:
            raise refused
        if is_refusal(error) or error.fatal():
            raise translate(error, settings=self._settings)
        self.trouble = error.str() if not self._has_joined else ""
        _log.info("kafka_says", extra={"reason": error.str()})

    def _commit_offsets(self, group: Any) -> None:
        offsets = [
            TopicPartition(shard.topic, shard.partition, each.shard.offset)
            for shard, each in self._owned.items()
            if each.shard is not None and each.shard.offset >= 0
        ]
        if offsets:
            try:
                group.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                _log.info("offsets_not_told", extra={"reason": error.args[0].str()})

    # -- state, for any thread

    def counts(self) -> Mapping[str, ShardCounts]:
        """Return the counts since the start, per topic."""
        with self._counting:
            found = dict(self._done)
            for each in self._at_work:
                found[each.topic] = found.get(each.topic, ShardCounts()) + each.counts
            return found

    def owned(self) -> Sequence[OwnedShard]:
        """Return the partitions that are owned now."""
        return [each.seen for each in self._owned.copy().values()]

    def _positions(self) -> Mapping[Place, int]:
        return {(each.topic, each.partition): each.position for each in self.owned() if each.position >= 0}

    # -- a shard

    def shard_ended(self, ownership: Ownership, *, for_good: bool = False) -> None:
        """Add the counts of an ownership's ended shard to the totals. `for_good`: the ownership begins no further
        shard."""
        with self._counting:
            self._done[ownership.topic] = self._done.get(ownership.topic, ShardCounts()) + ownership.counts
            ownership.let_go()
            if for_good:
                self._at_work.discard(ownership)

    def count_fenced(self) -> None:
        """Count that a shard was fenced. Any thread may call it."""
        with self._counting:
            self.fenced += 1

    def make_shard(self, shard: ShardId) -> Shard:
        """Make the shard of a partition, with its store, its reader and the application."""
        topic, partition = shard.topic, shard.partition
        return Shard(
            self._application,
            self._store(shard),
            shard=shard,
            topic_id=self._topic_id(topic),
            read=lambda sequencer: read_committed(
                self._settings, topic, partition, sequencer=sequencer, isolation=self._isolation
            ),
            publisher=self._publisher,
            limits=self._limits,
        )

    def _publisher(self) -> Publisher:
        return Publisher(self._settings, producer_id=new_producer_id(), clock=Clock(time.time_ns))

    def _topic_id(self, topic: str) -> str:
        """Return Kafka's id of a topic; an empty string if Kafka does not return it."""
        with AdminClient(client_settings(self._settings)) as admin:
            asked = admin.describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_SECONDS)[topic]
            try:
                return str(answer_of(asked, 2 * _ANSWER_SECONDS).topic_id)
            except KafkaException as error:
                _log.info("topic_id_unknown", extra={"topic": topic, "reason": str(error)})
                return ""
