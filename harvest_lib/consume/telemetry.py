"""Metrics and health of a consumer, for `harvest_lib.telemetry.server.Listener` or a registry of your own."""

from collections import Counter
from collections.abc import Iterator

from harvest_lib.clock import boot_seconds
from harvest_lib.consume.consumer import Consumer
from harvest_lib.consume.ownership import OwnedShard, ShardCounts
from harvest_lib.consume.retention import retention_readings
from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.catalogue import Reading
from harvest_lib.telemetry.counts import MOST_SERIES, OTHER
from harvest_lib.telemetry.health import Verdict

_UNRESPONSIVE_SECONDS = 60.0


class ConsumerTelemetry:
    """Metrics and health of a consumer. No method waits for a server: another thread queries Kafka for retention, once
    a minute."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._named: set[str] = set()  # topics that have a series of their own

    def readings(self) -> Iterator[Reading]:
        """Yield the present values of the metrics."""
        now = boot_seconds()
        consumer, owned = self._consumer, sorted(self._consumer.owned(), key=_stuck_since)
        counts: dict[str, ShardCounts] = {}
        for topic, count in consumer.counts().items():
            counts[self._label(topic)] = counts.get(self._label(topic), ShardCounts()) + count
        shards = {**dict.fromkeys(counts, 0), **Counter(self._label(each.topic) for each in owned)}
        yield catalogue.CONSUMER_SHARDS, {(topic,): float(number) for topic, number in shards.items()}
        yield catalogue.CONSUMER_MESSAGES, {(topic,): float(each.messages) for topic, each in counts.items()}
        yield catalogue.CONSUMER_TRANSACTIONS, {(topic,): float(each.transactions) for topic, each in counts.items()}
        yield catalogue.CONSUMER_PARKED, {(topic,): float(each.parked) for topic, each in counts.items()}
        yield catalogue.CONSUMER_FENCED, {(): float(consumer.fenced)}
        yield (
            catalogue.CONSUMER_OFFSET,
            {(each.topic, str(each.partition)): float(each.offset) for each in owned[:MOST_SERIES] if each.offset >= 0},
        )
        yield (
            catalogue.CONSUMER_STUCK,
            {
                (each.topic, str(each.partition)): now - each.stuck_since if each.stuck_since is not None else 0.0
                for each in owned[:MOST_SERIES]
            },
        )
        yield from retention_readings(consumer.retention.seen())
        yield catalogue.CERTIFICATE_EXPIRY, {(setting,): at for setting, at in consumer.certificates.expiries().items()}

    def _label(self, topic: str) -> str:
        """Return the label of a topic. Topics beyond a limit share one label, because a pattern may match any number of
        topics."""
        if len(self._named) < MOST_SERIES:
            self._named.add(topic)
        return topic if topic in self._named else OTHER

    def live(self) -> Verdict:
        """Return a healthy verdict if the consumer polls its group, whatever the servers do."""
        turned_at = self._consumer.turned_at
        if turned_at is None:
            return Verdict(is_healthy=False, reason="it does not run")
        if boot_seconds() - turned_at >= _UNRESPONSIVE_SECONDS:
            return Verdict(is_healthy=False, reason="it has not asked the group for a minute")
        return Verdict(is_healthy=True, reason="it turns")

    def ready(self) -> Verdict:
        """Return a healthy verdict if the consumer runs, with partitions or as a standby, and can join its group."""
        verdict = self.live()
        if not verdict.is_healthy:
            return verdict
        if trouble := self._consumer.trouble:
            return Verdict(is_healthy=False, reason=f"it has not joined its group: {trouble}")
        return Verdict(is_healthy=True, reason=f"it owns {len(self._consumer.owned())} partitions")

    def progress(self, within_seconds: float) -> Verdict:
        """Return an unhealthy verdict if an owned partition has committed nothing for `within_seconds` while it had an
        open transaction or was failing. Return a healthy verdict in all other cases."""
        now = boot_seconds()
        for each in self._consumer.owned():
            if each.stuck_since is not None and now - each.stuck_since >= within_seconds:
                reason = (
                    f"partition {each.partition} of {each.topic} has kept nothing for {now - each.stuck_since:.0f} s"
                )
                return Verdict(is_healthy=False, reason=reason)
        return Verdict(is_healthy=True, reason="each partition goes on, or has nothing")


def _stuck_since(shard: OwnedShard) -> float:
    return shard.stuck_since if shard.stuck_since is not None else float("inf")
