"""The trigger that watches topics for Airflow's assets: an event for each harvested message.

It is Airflow's own `KafkaSharedStreamTrigger` (Kafka provider 2.1, Airflow 3.3) with a producer that shows the
harvester's header: watchers of the same topics and connection share a consumer, whose offsets are committed once
Airflow's database has the events.

Promises
- Each harvested message after the watcher's first start is in an event, whatever is killed, when the DAG is paused or
  changed, and however long no triggerer runs, up to Kafka's `offsets.retention.minutes`: see `settling`.
- Messages without the harvester's header make no event, and their offsets are committed too.
- An event may be there twice: if the watcher ends within 10 s after the event was stored, or for a record that was
  delivered twice. Both have the same `id`.
- No event has a value; it has the key only if that is asked for.
- Errors end no watcher, as for `outbox_events`.

An event is a dict for JSON: the entries of `messages.harvested`, `id` (`<topic>:<outbox id>`), and perhaps `key`.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from itertools import takewhile
from typing import Any

from airflow.providers.apache.kafka.hooks.consume import KafkaConsumerHook
from airflow.providers.apache.kafka.triggers.shared_stream import (
    KafkaBrokerPayload,
    KafkaSharedStreamProducer,
    KafkaSharedStreamTrigger,
)
from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as ClientError

from harvest_lib.airflow.hooks.connections import afind
from harvest_lib.airflow.messages import event_of, harvested
from harvest_lib.airflow.triggers.settling import Settling
from harvest_lib.airflow.triggers.troubles import WatcherTroubles
from harvest_lib.errors import ConfigError, KafkaError
from harvest_lib.kafka_client import is_refusal, log_range

_MOST_OUTSTANDING = 500
"""Events that Airflow's database may lack while the next one is read. A watcher's queue has room for 1,024."""
_REQUIRED = {"enable.auto.commit": "false", "auto.offset.reset": "earliest"}
_SECONDS = 30.0
_UNKNOWN = (ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_TOPIC)
_TEMPORARY = (ClientError._TRANSPORT, ClientError._TIMED_OUT, ClientError._ALL_BROKERS_DOWN)


class TopicEventTrigger(KafkaSharedStreamTrigger):
    """Watch topics, for an `AssetWatcher`."""

    def __init__(
        self,
        *,
        topics: Sequence[str],
        kafka_config_id: str = "kafka_default",
        start: str = "now",
        shows_keys: bool = False,
        poll_timeout: float = 1.0,
    ) -> None:
        """Make a trigger. It reads nothing.

        `kafka_config_id` names an Airflow connection of type `kafka`, with `enable.auto.commit` `false`,
        `auto.offset.reset` `earliest`, and a `group.id` that no other topics and no other program use. `start`, `now`
        or `beginning`, counts for topics of which the group has no offset yet. `shows_keys` puts keys into the events.
        `poll_timeout` is in seconds.
        """
        named = [topics] if isinstance(topics, str) else topics
        super().__init__(topics=named, kafka_config_id=kafka_config_id, poll_timeout=poll_timeout)
        self.start = start
        self.shows_keys = shows_keys

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments that recreate this trigger in another process."""
        names = ("topics", "kafka_config_id", "start", "shows_keys", "poll_timeout")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    def shared_stream_key(self) -> Hashable:
        """Return the key by which watchers share a consumer: topics, connection and start."""
        return __name__, tuple(self.topics), self.kafka_config_id, self.start

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> "TopicEvents":
        """Return the producer of the events."""
        names = ("topics", "kafka_config_id", "start", "poll_timeout")
        return TopicEvents(**{name: kwargs[name] for name in names})

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Fire for each message of the stream that was harvested."""
        async for found, key in shared_stream:
            if found is not None:
                yield TriggerEvent(event_of(found, key if self.shows_keys else None))  # type: ignore[no-untyped-call]


class TopicEvents(KafkaSharedStreamProducer):
    """The producer of the events of harvested messages, and of nothing for each other message."""

    def __init__(self, *, topics: Sequence[str], kafka_config_id: str, start: str, poll_timeout: float) -> None:
        """Prepare; nothing is read yet."""
        super().__init__(topics=topics, kafka_config_id=kafka_config_id, poll_timeout=poll_timeout)
        self._start = start
        self._troubles = WatcherTroubles(f"the watcher of {', '.join(topics)} by {kafka_config_id!r}")
        self._missing: set[str] = set()
        self._outstanding = 0
        self._settling: Settling[Sequence[AdvanceItem]] = Settling()
        self._advanced = asyncio.Event()

    async def open_stream(self) -> AsyncIterator[tuple[Any, KafkaBrokerPayload]]:
        """Yield for each message the coordinates and the key, or twice None, for ever."""
        while True:
            try:
                await self._save()
                message = await self._next()
            except Exception as error:  # noqa: BLE001 - Airflow would start the watcher again at once
                await asyncio.sleep(self._troubles.tell(error))
                continue
            if message is None:
                continue
            self._troubles.end()
            self._outstanding += 1
            place = KafkaBrokerPayload(str(message.topic()), message.partition() or 0, message.offset() or 0)
            found = harvested(message)
            yield (found, message.key() if found is not None else None), place
            while self._outstanding >= _MOST_OUTSTANDING:
                self._advanced.clear()
                await self._advanced.wait()

    async def _next(self) -> Message | None:
        if self._consumer is None:
            await self._check()
            self._consumer = await asyncio.to_thread(self._subscribed)
            self._troubles.end()
        message = await asyncio.to_thread(self._consumer.poll, self.poll_timeout)
        if message is not None and (error := message.error()) is not None:
            if error.fatal():
                self._settling.clear()  # the next consumer begins at the committed offsets
                consumer, self._consumer = self._consumer, None
                await asyncio.to_thread(consumer.close)
            raise self._translated(error)
        return message

    async def _check(self) -> None:
        """Raise ConfigError if the settings of the connection would lose messages."""
        connection = await afind(self.kafka_config_id, "kafka")
        for name, value in _REQUIRED.items():
            if str(connection.extra_dejson.get(name, "")).lower() != value:
                raise ConfigError(
                    f"the Airflow connection {self.kafka_config_id} would lose messages",
                    field=name,
                    next_step=f'set "{name}": "{value}" in the extra fields of the connection',
                )

    def _subscribed(self) -> Consumer:
        consumer: Consumer = KafkaConsumerHook(topics=self.topics, kafka_config_id=self.kafka_config_id).get_conn
        try:
            if self._start == "now":
                for topic in self.topics:
                    self._begin(consumer, topic)
            consumer.subscribe(self.topics)
        except KafkaException as error:
            consumer.close()
            raise self._translated(error.args[0]) from error
        return consumer

    def _begin(self, consumer: Consumer, topic: str) -> None:
        """Commit the ends of a topic's partitions if the group has no offset of the topic: from here on, nothing is
        left out. Partitions that are added later are read from their beginning."""
        known = consumer.list_topics(topic, timeout=_SECONDS).topics[topic]
        if known.error is not None:
            if known.error.code() in _UNKNOWN:
                self._missing.add(topic)
            raise KafkaException(known.error)
        places = [TopicPartition(topic, partition) for partition in known.partitions]
        if any(each.offset >= 0 for each in consumer.committed(places, timeout=_SECONDS)):
            return
        for each in places:
            # A topic that did not exist when the watcher started has nothing from before.
            is_new = topic in self._missing
            each.offset = 0 if is_new else log_range(consumer, topic, each.partition, timeout_seconds=_SECONDS)[1]
        consumer.commit(offsets=places, asynchronous=False)

    def _translated(self, error: ClientError) -> KafkaError:
        step = "its credentials and the ACLs" if is_refusal(error) else "that the brokers run and that the topics exist"
        return KafkaError(
            "Kafka cannot be read",
            evidence=error.str(),
            next_step=f"check the Airflow connection {self.kafka_config_id}, and {step}",
        )

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Note the messages whose events Airflow's database has. The first message whose event it may lack is read
        again, and so is everything after it."""
        clean = [*takewhile(lambda each: each.outcome.is_clean, batch)]
        try:
            if clean:
                self._settling.add([clean[0], clean[-1]])
            rest = batch[len(clean) :]
            while rest and not await self._committed(rest):
                pass
        finally:
            self._outstanding -= len(batch)
            self._advanced.set()

    async def _save(self) -> None:
        """Commit the offsets of what is settled. What cannot be committed any more, because another consumer of the
        group has the partition, is read again by that one."""
        for batch in self._settling.settled():
            while not await self._committed(batch):
                pass
            self._settling.remove(1)

    async def _committed(self, batch: Sequence[AdvanceItem]) -> bool:
        """Commit. Return False if a retry may help."""
        try:
            await super().advance(batch)
        except KafkaException as error:
            pause = self._troubles.tell(self._translated(error.args[0]))
            if error.args[0].retriable() or error.args[0].code() in _TEMPORARY:
                await asyncio.sleep(pause)
                return False
        return True
