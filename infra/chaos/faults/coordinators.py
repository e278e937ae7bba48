"""Faults of the broker that coordinates the leader's transactions or, without transactions, its consumer group."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

from confluent_kafka.admin import AdminClient

from harvest_lib.errors import StackError
from infra.chaos.faults.fault import Fault
from infra.chaos.system import GROUP, System
from infra.chaos.writing import Writing
from infra.log_lines import JsonLines

_TRANSACTIONS = "__transaction_state"
_ANSWER_SECONDS = 10
_COMMIT_SECONDS = 30.0
_LOOK_SECONDS = 0.002


@contextmanager
def _coordinator_killed(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
    system.await_leader()
    admin = AdminClient({"bootstrap.servers": system.kafka.bootstrap_servers, "log_level": 0})
    if system.mode.delivery == "transactional":
        number = _of_transactions(system, admin)
    else:
        described = admin.describe_consumer_groups([GROUP], request_timeout=_ANSWER_SECONDS)[GROUP].result()
        number = described.coordinator.id
    system.kafka.brokers[number - 1].kill()
    try:
        yield
    finally:
        system.kafka.start_broker(number)
        system.await_cluster()


def _of_transactions(system: System, admin: AdminClient) -> int:
    """Wait until harvesters have requested two commits. Return the id of the broker that coordinates the second."""
    commits = _commits(system)
    next(commits)  # before the first commit there may be no coordinator
    partitions = admin.list_topics(_TRANSACTIONS, timeout=_ANSWER_SECONDS).topics[_TRANSACTIONS].partitions
    return int(partitions[_partition(next(commits), len(partitions))].leader)


def _commits(system: System) -> Iterator[str]:
    """Yield the transactional id of each commit that harvesters request from now on, milliseconds after the request."""
    histories = [JsonLines(member.history) for member in system.members]
    for each in histories:
        each.new()  # skips earlier events
    deadline = time.monotonic() + _COMMIT_SECONDS
    while time.monotonic() < deadline:
        for line in chain.from_iterable(each.new() for each in histories):
            if (line["kind"], line["type"], line.get("step")) == ("transaction", "invoke", "commit"):
                yield line["transactional_id"]
        time.sleep(_LOOK_SECONDS)
    raise StackError(
        f"no harvester has committed anything within {_COMMIT_SECONDS:.0f} s",
        next_step="read the logs of the harvesters, beside the history",
    )


def _partition(name: str, partitions: int) -> int:
    """Return the partition in which Kafka stores a transactional id: the absolute value of the hash that Java computes,
    modulo the number of partitions."""
    hashed = 0
    for unit in name.encode("ascii"):
        hashed = (31 * hashed + unit) & 0xFFFFFFFF
    return abs(hashed - (1 << 32) if hashed >> 31 else hashed) % partitions


FAULTS: Mapping[str, Fault] = {
    "coordinator-killed": Fault(
        promise="each request to it is done completely or not at all",
        inject=_coordinator_killed,
        brokers=3,
        fits=lambda mode: mode.delivery == "transactional" or mode.elects_by_kafka,
    ),
}
