"""The configuration of a Kafka broker, which is a controller too."""

from collections.abc import Mapping, Sequence
from pathlib import Path

_OF_ONE = {
    "broker.session.timeout.ms": 15_000,
    "broker.heartbeat.interval.ms": 3000,
    # No other controller waits for a sign of life. Twice a second costs half the load of an idle broker.
    "metadata.max.idle.interval.ms": 0,
}


def broker_properties(
    number: int,
    *,
    data: Path,
    controllers: Sequence[int],
    listeners: Mapping[str, str],
    advertised: Mapping[str, str],
    access: Mapping[str, object],
    start_seconds: int,
) -> str:
    """Return the text of its file. There is a broker for each port in `controllers`; listeners are addresses by name,
    `access` has their security settings. A broker may take `start_seconds` to join."""
    replicas = len(controllers)
    voters = ",".join(f"{voter}@127.0.0.1:{port}" for voter, port in enumerate(controllers, 1))
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        # Named here and not in the data, so that a port may change between two runs.
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": _addresses(listeners),
        "advertised.listeners": _addresses(advertised),
        **access,
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": min(2, replicas),
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min(2, replicas),
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": min(2, replicas),
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        # A minute by default, after which a broker that a busy machine holds up ends itself.
        "initial.broker.registration.timeout.ms": 1000 * start_seconds,
        # A broker that crashed may come back once its old session is over. A broker that a busy machine holds up for
        # longer takes no new topics for a moment, and a single broker has no other to take them.
        **(_OF_ONE if replicas == 1 else {"broker.session.timeout.ms": 4000, "broker.heartbeat.interval.ms": 500}),
        # By default half of the heap below.
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _addresses(listeners: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in listeners.items())
