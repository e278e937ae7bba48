"""A consumer: processes that share the partitions of topics, and own each as a shard.

Who owns a partition is agreed on in a consumer group of Kafka; that alone keeps nobody from going on who was frozen, or
does not know yet that he has lost it. What keeps him is the fence of the store: there is one owner who can commit.

Promises
- A partition that comes is owned by a thread until it goes; one that goes is let go of within END_SECONDS, its
  transaction kept. Where a function of the user takes longer, the next owner's fence refuses what comes of it.
- What fails is tried again from its checkpoint, with growing pauses, and said each time; other partitions go on.
- Nothing is read through the group. Its offsets are a copy for those who watch its lag.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import Consumer as KafkaClient
from confluent_kafka.admin import AdminClient

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.consume.checkpoint import ShardId
from harvest_lib.consume.limits import ShardLimits
from harvest_lib.consume.reader import Isolation, read_committed
from harvest_lib.consume.shard import Fenced, Shard
from harvest_lib.consume.store import Store
from harvest_lib.consume.transaction import Application
from harvest_lib.errors import HarvestError, TopicMissing
from harvest_lib.kafka_client import client_settings, is_refusal, refused_settings, translate
from harvest_lib.sequencing.message_id import Clock, new_producer_id
from harvest_lib.sequencing.publisher import Publisher

_log = logging.getLogger(__name__)

END_SECONDS = 10.0
"""How long a shard may take to end."""
_POLL_SECONDS = 0.1
_TELL_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 10.0
_ANSWER_SECONDS = 10.0
_SESSION_MS = 45_000  # librdkafka's default
_GROUP_ONLY = {"session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "group.instance.id"}
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001 - librdkafka's own code


class Consumer:
    """One member of the group; start as many as you like, on as many machines."""

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
        """`name` is that of the group, and of the checkpoints: who changes it starts over. `settings` are librdkafka's;
        `isolation` is Kafka's own, for topics that are written in Kafka transactions."""
        self._application, self._name, self._topics = application, name, list(topics)
        self._group_settings = settings
        self._settings = {setting: value for setting, value in settings.items() if setting not in _GROUP_ONLY}
        self._store, self._isolation = store, isolation
        self._limits = limits or ShardLimits()
        self._owned: dict[ShardId, _Ownership] = {}
        self.session_seconds = float(str(settings.get("session.timeout.ms", _SESSION_MS))) / 1000
        """After so long the group knows that a member is gone, and a member that it is."""
        self._counting = threading.Lock()
        self.fenced = 0
        """How often a transaction was refused, as another owner had begun."""

    def run(self, stopping: threading.Event) -> None:
        """Consume until a stop is asked for. Raises TopicMissing and KafkaAccessDenied."""
        with refused_settings():
            group: Any = KafkaClient(
                client_settings(
                    self._group_settings,
                    **{
                        "group.id": self._name,
                        "enable.auto.commit": False,
                        "auto.offset.reset": "latest",
                        "partition.assignment.strategy": "cooperative-sticky",
                        "allow.auto.create.topics": False,
                    },
                )
            )
        try:
            group.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            tell_at = 0.0
            while not stopping.is_set():
                self._look_at(group.poll(_POLL_SECONDS))
                if boot_seconds() >= tell_at:
                    tell_at = boot_seconds() + _TELL_SECONDS
                    self._tell_offsets(group)
        finally:
            self._end(list(self._owned))
            group.close()

    # -- the group

    def _assigned(self, group: Any, partitions: list[TopicPartition]) -> None:
        places = [TopicPartition(each.topic, each.partition, OFFSET_END) for each in partitions]
        group.incremental_assign(places)
        group.pause(places)
        for each in partitions:
            shard = ShardId(self._name, each.topic, each.partition)
            self._owned[shard] = _Ownership(self, shard)

    def _revoked(self, group: Any, partitions: list[TopicPartition]) -> None:
        self._end(self._shards(partitions))
        group.incremental_unassign(partitions)

    def _lost(self, group: Any, partitions: list[TopicPartition]) -> None:
        """Somebody else may have them by now: the fence decides, there is nothing to wait for."""
        self._end(self._shards(partitions), seconds=0.0)
        group.incremental_unassign(partitions)

    def _shards(self, partitions: Iterable[TopicPartition]) -> list[ShardId]:
        return [ShardId(self._name, each.topic, each.partition) for each in partitions]

    def _end(self, shards: Iterable[ShardId], seconds: float | None = None) -> None:
        owned = [self._owned.pop(shard) for shard in shards if shard in self._owned]
        for each in owned:
            each.stopping.set()
        deadline = Deadline(END_SECONDS if seconds is None else seconds)
        for each in owned:
            each.await_end(deadline.remaining_seconds)

    def _look_at(self, message: Any) -> None:
        error = message.error() if message is not None else None
        if error is None:
            return
        if error.code() in _MISSING:
            raise TopicMissing(
                f"a topic of {', '.join(self._topics)} does not exist", evidence=error.str(), next_step="create it"
            )
        if is_refusal(error) or error.fatal():
            raise translate(error, settings=self._settings)
        _log.info("kafka_says", extra={"reason": error.str()})

    def _tell_offsets(self, group: Any) -> None:
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

    # -- a shard

    def count_fenced(self) -> None:
        """Add one to `fenced`; any thread may."""
        with self._counting:
            self.fenced += 1

    def make_shard(self, shard: ShardId) -> Shard:
        """Return the shard, not yet restored, with a store, a reader and a publisher of its own."""
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
        """Return Kafka's id of a topic, empty where it cannot be asked."""
        admin = AdminClient(client_settings(self._settings))
        asked = admin.describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_SECONDS)[topic]
        try:
            return str(asked.result(2 * _ANSWER_SECONDS).topic_id)
        except (KafkaException, TimeoutError) as error:
            _log.info("topic_id_unknown", extra={"topic": topic, "reason": str(error)})
            return ""


class _Ownership:
    """A partition that is ours, and the thread that sees to it."""

    def __init__(self, consumer: Consumer, shard: ShardId) -> None:
        self.shard: Shard | None = None
        self.stopping = threading.Event()
        self._consumer, self._id = consumer, shard
        self._thread = threading.Thread(target=self._run, name=str(shard), daemon=True)
        self._thread.start()

    def await_end(self, seconds: float) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning("shard_left", extra={"shard": str(self._id), "seconds": seconds})

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self.stopping.is_set():
            _log.info("shard_begins", extra={"shard": str(self._id)})
            try:
                self.shard = self._consumer.make_shard(self._id)
                self.shard.run(self.stopping)
            except Fenced:
                self._consumer.count_fenced()
                _log.warning("shard_fenced", extra={"shard": str(self._id)})
                # Whoever has it is likely its owner: to fence that one in turn, the group has to say so still.
                self.stopping.wait(self._consumer.session_seconds)
            except HarvestError as error:
                _log.error("shard_failed", extra={"shard": str(self._id), "reason": str(error)})
            except Exception:  # noqa: BLE001 - the user's, of which we know nothing; the next attempt is a new one
                _log.exception("shard_failed", extra={"shard": str(self._id)})
            if self.shard is not None and self.shard.transactions:
                pause = _FIRST_PAUSE_SECONDS
            self.shard = None
            self.stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        _log.info("shard_ends", extra={"shard": str(self._id)})
