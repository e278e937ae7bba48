"""NELI: the owner of partition *s* of the leader topic, in the consumer group of the pool, leads shard *s*.

    standby ──assigned partition s──► candidate ──both proofs──► leader ──no fresh proofs──► fenced, candidate again
       ▲                                  │                         │
       └────────── revoked or lost ───────┴─────────────────────────┘

Two proofs keep a term alive for the heartbeat timeout, counted from when each proof was *sent*:
1. The process receives its own heartbeat back from the partition. So it can write to and read from the leader topic.
2. The group's coordinator accepts an offset commit. So the process is a member of the group's present generation. The
   heartbeat alone cannot prove this: a member that was expelled while it was frozen fetches until it is notified.

Each shard has its own heartbeats, so a single shard may be fenced. The accepted commit is a proof for all shards of a
member.

A heartbeat contains the random id of its term. So a heartbeat that was buffered during a freeze, or that belongs to an
earlier term, proves nothing. A fenced process leads again, under a new id, when it has both proofs again.

A rebalance revokes all partitions of all members, waits until records in flight have landed, and assigns the partitions
again. So a shard pauses even if its leader stays the same. Partitions beyond the number of shards are ignored.

The leader topic is polled every `min_poll_interval_seconds`, and each poll receives all pending messages.

With its commits a member publishes its pool, and the trouble that keeps it from leading (`group_members`). On another
thread, a member without proofs queries Kafka for trouble with the leader topic, and a member that has to wait queries
Kafka for members of another pool (`other_pools`).
"""

import logging
import threading
from collections.abc import Callable, Mapping

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    ThrottleEvent,
    TopicPartition,
)

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.errors import KafkaUnavailable, PoolConflict
from harvest_lib.kafka_client import (
    KafkaConsumer,
    KafkaConsumerProvider,
    KafkaProducer,
    KafkaProducerProvider,
    LastError,
    client_settings,
    is_refusal,
    refused_settings,
)
from harvest_lib.leadership.candidacy import NEVER, Candidacy
from harvest_lib.leadership.diagnosis import Diagnosis
from harvest_lib.leadership.leader_topic import ensure_leader_topic
from harvest_lib.leadership.membership import Membership
from harvest_lib.leadership.neli_settings import NeliSettings
from harvest_lib.leadership.other_pools import OtherPools
from harvest_lib.leadership.pool import Pool
from harvest_lib.leadership.protocol import Term, TermEnd
from harvest_lib.leadership.term_registry import ElectedLeadership
from harvest_lib.leadership.trouble import Trouble

_log = logging.getLogger(__name__)


class Neli(ElectedLeadership):
    """`Leadership` by a consumer group of Kafka. `client` has the user's settings, with secrets in clear text.

    `consumer_provider` and `producer_provider` make the clients from librdkafka settings.
    """

    def __init__(
        self,
        settings: NeliSettings,
        client: Mapping[str, object],
        clock: Callable[[], float] = boot_seconds,
        *,
        consumer_provider: KafkaConsumerProvider = Consumer,
        producer_provider: KafkaProducerProvider = Producer,
        pool: Callable[[], Pool] | None = None,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._ask_pool = pool
        self._others: OtherPools | None = None
        self._client = client
        self._clock = clock
        self._consumer_provider = consumer_provider
        self._producer_provider = producer_provider
        self._candidacies = [
            Candidacy(shard, timeout_seconds=settings.heartbeat_timeout_seconds, clock=clock)
            for shard in range(settings.shards)
        ]
        self._fenced: list[tuple[float, Term]] = []  # when a term's records cannot arrive any more; term
        self._trouble = Trouble()
        self._last_error = LastError()
        self._diagnosis = Diagnosis(
            client, settings.topic, lambda: [candidacy.assigned for candidacy in self._candidacies]
        )
        self._membership = Membership(settings.topic, self._trouble)

    def start(self) -> None:
        settings = self._settings
        ensure_leader_topic(self._client, settings.topic, settings.shards, may_create=settings.create_topic)
        if self._ask_pool is not None:
            self._others = OtherPools(self._ask_pool(), self._client, self._producer_provider)
            self._others.refuse()
        with refused_settings():
            consumer, producer = self._clients()
        ended = KafkaUnavailable("the election ended by itself", next_step="see the log above; check `baseKafkaConfig`")
        self._elect(lambda: self._run(consumer, producer), "harvest-neli", ended)
        self._diagnosis.start(self._others)

    @property
    def trouble(self) -> str:
        stalled = [each.shard for each in self._candidacies if each.has_stalled(self._registry)]
        return f"shard {stalled[0]} was assigned, and cannot be proved" if stalled else self._trouble.text

    def stop(self, timeout_seconds: float) -> None:
        self._stopping.set()
        self._diagnosis.stop()
        super().stop(timeout_seconds)

    # All methods below run on the election thread. Rebalance callbacks do too, because poll() and close() call them.

    def _clients(self) -> tuple[KafkaConsumer, KafkaProducer]:
        callbacks = {"error_cb": self._on_error, "throttle_cb": self._on_throttle}
        own = {**self._settings.consumer(), "on_commit": self._membership.answered, **callbacks}
        consumer = self._consumer_provider(client_settings({"socket.timeout.ms": 10_000, **self._client}, **own))
        own = {**self._settings.producer(), "on_delivery": self._on_heartbeat, **callbacks}
        return consumer, self._producer_provider(client_settings(self._client, **own))

    def _run(self, consumer: KafkaConsumer, producer: KafkaProducer) -> None:
        settings = self._settings
        consumer.subscribe(
            [settings.topic],
            # `consumer` is passed, not the client that the callback gets, which may be wrapped.
            on_assign=lambda _client, partitions: self._on_assign(consumer, partitions),
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        try:
            while not self._stopping.is_set():
                next_poll = self._clock() + settings.min_poll_interval_seconds
                self._listen(consumer, next_poll)
                self._prove(consumer, producer)
                producer.poll(0)
                self._judge()
                self._take_findings()
                self._stopping.wait(max(0.0, next_poll - self._clock()))
        finally:
            producer.purge()
            consumer.close()

    def _listen(self, consumer: KafkaConsumer, until: float) -> None:
        """Receive pending messages, but only up to the time `until`, so that endless writes of other programs to the
        topic do not delay the check of the proofs."""
        message = consumer.poll(self._settings.poll_duration_seconds)
        while message is not None:
            self._receive(message)
            message = consumer.poll(0) if self._clock() < until else None

    def _on_assign(self, consumer: KafkaConsumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = OFFSET_END  # only own messages from now on can prove anything
        consumer.assign(partitions)
        for candidacy in self._among(partitions):
            candidacy.assigned = True
            candidacy.begin()

    def _on_revoke(self, _client: object, partitions: list[TopicPartition]) -> None:
        candidacies, now = self._among(partitions), self._clock()
        terms = self._end_terms(candidacies, TermEnd.REVOKED)
        doubts = [(now + self._settings.session_timeout_seconds, term) for term in terms]
        shards = {candidacy.shard for candidacy in candidacies}
        doubts += [(until, term) for until, term in self._fenced if until > now and term.shard in shards]
        # No successor is elected before this returns, so records in flight may land first.
        deadline = Deadline(self._settings.quiesce_timeout_seconds)
        for _, term in doubts:
            if not term.quiesced.wait(deadline.remaining_seconds):
                _log.warning("term_not_quiesced", extra={"leader_id": str(term.leader_id)})
        if in_doubt := [until for until, term in doubts if term.abandoned]:
            # Records of these terms may still arrive, so the successors begin only when they would begin after a kill.
            # A stop does not wait here: the member's session then runs out, which takes as long.
            threading.Event().wait(max(in_doubt) - now)

    def _on_lost(self, _client: object, _partitions: list[TopicPartition]) -> None:
        self._end_terms(self._candidacies, TermEnd.FENCED)

    def _among(self, partitions: list[TopicPartition]) -> list[Candidacy]:
        numbers = {partition.partition for partition in partitions}
        return [candidacy for candidacy in self._candidacies if candidacy.shard in numbers]

    def _end_terms(self, candidacies: list[Candidacy], how: TermEnd) -> list[Term]:
        for candidacy in candidacies:
            candidacy.assigned = False
        return self._registry.vacate(how, [candidacy.shard for candidacy in candidacies])

    def _on_heartbeat(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._trouble.note("heartbeat", error, self._last_error.text)
            self._diagnosis.request()

    def _on_error(self, error: KafkaError) -> None:
        self._last_error(error)
        if is_refusal(error):
            self._trouble.note("connection", error)

    def _on_throttle(self, event: ThrottleEvent) -> None:
        if event.throttle_time >= self._settings.heartbeat_interval_seconds:
            reason = f"a quota: broker {event.broker_name} delays us by {event.throttle_time:.1f} s"
            self._trouble.say("throttled", reason)

    def _take_findings(self) -> None:
        for found in self._diagnosis.findings():
            if isinstance(found, PoolConflict):
                raise found
            self._trouble.say(found, found)

    def _prove(self, consumer: KafkaConsumer, producer: KafkaProducer) -> None:
        now = self._clock()
        assigned = [candidacy for candidacy in self._candidacies if candidacy.assigned]
        due = [candidacy for candidacy in assigned if now >= candidacy.next_heartbeat]
        for candidacy in due:
            leads = candidacy.shard in self._registry.terms
            candidacy.next_heartbeat = now + (
                self._settings.heartbeat_interval_seconds if leads else self._settings.min_poll_interval_seconds
            )
        try:
            for candidacy in due:
                self._send_heartbeat(producer, candidacy, now)
            if due and not self._membership.unanswered:
                self._membership.commit(consumer, self._others.pool if self._others else None, assigned, now)
        except (BufferError, KafkaException) as error:
            if isinstance(error, KafkaException):
                self._trouble.note("heartbeat", error.args[0], self._last_error.text)
            else:
                self._trouble.say("heartbeat:full", "heartbeat: the queue of the producer is full")
            self._diagnosis.request()

    def _send_heartbeat(self, producer: KafkaProducer, candidacy: Candidacy, now: float) -> None:
        producer.produce(self._settings.topic, candidacy.heartbeat(now), partition=candidacy.shard)

    def _receive(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            self._trouble.note("leader topic", error)
            self._diagnosis.request()
            return
        if self._others is not None and (conflict := self._others.hear(message.value())) is not None:
            self._trouble.report(f"{conflict.cause}")
            return
        shard = message.partition() or 0
        if shard < len(self._candidacies):
            self._candidacies[shard].receive(message.value(), message.offset() or 0)

    def _judge(self) -> None:
        now = self._clock()
        self._fenced = [(until, term) for until, term in self._fenced if until > now]
        before = dict(self._registry.terms)
        for candidacy in self._candidacies:
            candidacy.judge(self._registry, self._membership.accepted_at)
            if candidacy.stalls(self._registry):
                self._complain_of(candidacy, now)
        if self._registry.terms.keys() - before.keys():
            self._trouble.clear()
        over = [term for shard, term in before.items() if shard not in self._registry.terms]
        self._fenced += [(now + self._settings.session_timeout_seconds, term) for term in over]

    def _complain_of(self, candidacy: Candidacy, now: float) -> None:
        """Log which proof is missing, and request a diagnosis."""
        self._diagnosis.request()
        accepted_at = self._membership.accepted_at
        _log.warning(
            "election_stalled",
            extra={
                "shard": candidacy.shard,
                "heartbeat_heard": candidacy.heard_at != NEVER,
                "commit_accepted_seconds_ago": None if accepted_at == NEVER else round(now - accepted_at, 1),
                "commits_unanswered": self._membership.unanswered,
                "reason": self._trouble.text or self._last_error.text,
            },
        )
