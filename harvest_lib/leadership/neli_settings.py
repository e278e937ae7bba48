"""The settings of NELI, and what follows from them for its two clients of Kafka."""

from collections.abc import Mapping
from dataclasses import dataclass

# If a member of two, with two shards, leaves, the other leads both after 0.4 s, 0.7 at worst, instead of 0.6 and 1.
_SHARING = {
    "partition.assignment.strategy": "roundrobin,range",  # by turns: even, however many partitions are unused
    "fetch.wait.max.ms": 100,  # a new assignment is not fetched before the previous fetch has returned
    "statistics.interval.ms": 250,  # they are not read: they wake the thread that sends heartbeats, else only every 500
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeliSettings:
    """Times in seconds. `session_timeout_seconds` exceeds `heartbeat_timeout_seconds`: a leader that lost touch fences
    itself before another can be elected."""

    topic: str
    group_id: str
    shards: int = 1
    create_topic: bool = True
    heartbeat_timeout_seconds: float = 5.0
    min_poll_interval_seconds: float = 0.1
    """The leader topic is polled no more often than this, and heartbeats come no more often."""
    poll_duration_seconds: float = 0.001
    """Wait of a poll for a message that is not there yet."""
    session_timeout_seconds: float = 10.0
    quiesce_timeout_seconds: float = 5.0
    """Limit of a rebalance's wait for records in flight to land."""

    @property
    def heartbeat_interval_seconds(self) -> float:
        """Return the time between two heartbeats of a leader."""
        return max(self.min_poll_interval_seconds, self.heartbeat_timeout_seconds / 10)

    def consumer(self) -> Mapping[str, object]:
        """Return the librdkafka settings of the consumer, with which a member stands and receives its heartbeats."""
        return {
            "group.id": self.group_id,
            "group.protocol": "classic",
            "partition.assignment.strategy": "range,roundrobin",  # revoked as a whole, then assigned
            "max.poll.interval.ms": max(300_000, int(self.session_timeout_seconds * 1000)),
            "session.timeout.ms": int(self.session_timeout_seconds * 1000),
            "heartbeat.interval.ms": 250,
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
            **(_SHARING if self.shards > 1 else {}),
        }

    def producer(self) -> Mapping[str, object]:
        """Return the librdkafka settings of the producer of heartbeats."""
        return {
            "linger.ms": 0,
            "message.timeout.ms": int(self.heartbeat_timeout_seconds * 1000),
            "allow.auto.create.topics": False,
        }
