"""The settings of NELI, and the settings of librdkafka that follow from them for NELI's consumer and producer."""

from collections.abc import Mapping
from dataclasses import dataclass

# With two shards and two members, if a member leaves, the other leads both shards after 0.4 s (worst 0.7 s). Without
# these settings it takes 0.6 s (worst 1 s).
_SHARING = {
    "partition.assignment.strategy": "roundrobin,range",  # by turns: even, however many partitions are unused
    "fetch.wait.max.ms": 100,  # the first fetch after an assignment waits for the return of the previous fetch
    "statistics.interval.ms": 250,  # wakes the thread of the group's heartbeats, which else wakes every 500 ms
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeliSettings:
    """Settings of NELI. Times are in seconds. `session_timeout_seconds` exceeds `heartbeat_timeout_seconds`, so that a
    leader without contact to Kafka fences itself before another leader can be elected."""

    topic: str
    group_id: str
    shards: int = 1
    create_topic: bool = True
    heartbeat_timeout_seconds: float = 5.0
    min_poll_interval_seconds: float = 0.1
    """Least time between two polls of the leader topic, and between two heartbeats."""
    poll_duration_seconds: float = 0.001
    """Longest wait of a poll for a message."""
    session_timeout_seconds: float = 10.0
    quiesce_timeout_seconds: float = 5.0
    """Limit of the time that a rebalance waits until records in flight have landed."""

    @property
    def heartbeat_interval_seconds(self) -> float:
        """Return the time between two heartbeats of a leader."""
        return max(self.min_poll_interval_seconds, self.heartbeat_timeout_seconds / 10)

    def consumer(self) -> Mapping[str, object]:
        """Return the librdkafka settings of a member's consumer, which joins the group and receives heartbeats."""
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
