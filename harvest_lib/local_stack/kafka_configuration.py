"""The configuration of a Kafka broker that is also a controller."""

from collections.abc import Mapping, Sequence
from pathlib import Path

_OF_ONE = {
    "broker.session.timeout.ms": 15_000,
    "broker.heartbeat.interval.ms": 3000,
    # With a single broker no other controller waits for these records. By default they are written twice a second, half
    # the load of an idle broker.
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
    """Return the text of a broker's properties file. `controllers` has the controller port of each broker. `listeners`
    and `advertised` map listener names to addresses, and `access` has the security settings of the listeners. A broker
    may take `start_seconds` to join the cluster."""
    replicas = len(controllers)
    voters = ",".join(f"{voter}@127.0.0.1:{port}" for voter, port in enumerate(controllers, 1))
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        # The voters are set here, not in the formatted data, so that a port may change between two runs.
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
        # The default is a minute, after which a broker exits. On a busy machine the registration may take longer.
        "initial.broker.registration.timeout.ms": 1000 * start_seconds,
        # With several brokers the session is short, because a crashed broker may only rejoin after its old session has
        # ended. If a busy machine delays a broker for longer than its session, the broker gets no new topics for a
        # moment. A single broker has a long session, because no other broker could get the topics.
        **(_OF_ONE if replicas == 1 else {"broker.session.timeout.ms": 4000, "broker.heartbeat.interval.ms": 500}),
        # The default would be half of the heap, see `_JVM` of `kafka`.
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _addresses(listeners: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in listeners.items())
