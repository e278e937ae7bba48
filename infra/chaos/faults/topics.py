"""Faults of the topic of the records: an operator deletes it and creates it again under the same name.

Unread records are lost. Just before the deletion, the follower has read all records whose commit was confirmed, so only
later writes can be lost. Records that Kafka acknowledged and the follower did not read are noted as lost.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from harvest_lib.clock import Deadline
from infra.chaos.faults.fault import Fault
from infra.chaos.history.events import Acknowledge, Event, Produce, RecreatedTopic
from infra.chaos.history.lines import from_line
from infra.chaos.parked import count, retry_all
from infra.chaos.system import TOPIC, System
from infra.chaos.writing import Writing
from infra.waiting import until

_ANSWER_SECONDS = 10.0
_READY_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_OF_RECORDS = (b'{"kind":"produce"', b'{"kind":"acknowledge"')
_BELIEVED_SECONDS = 6.0
"""Longer than the 5 s for which a harvester caches that a topic does not exist."""


@contextmanager
def _topic_recreated(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
    since, made_at = system.following.catch_up(), system.topic_made_at
    _delete(system)
    system.following.reader.leave()
    try:
        yield
    finally:
        system.make_topic()
        at = system.topic_made_at
        system.await_cluster()
        system.following.reader.begin()
        _go_on(system)
        gone = system.following.unread(acknowledged(system.history, made_at, at))
        system.happened.append(
            RecreatedTopic(type="ok", process="chaos", time=at, topic=TOPIC, events=gone, since=since)
        )


def _delete(system: System) -> None:
    """Delete the topic, and wait until no broker lists it."""
    admin = AdminClient({"bootstrap.servers": system.kafka.bootstrap_servers, "log_level": 0})
    admin.delete_topics([TOPIC], request_timeout=_ANSWER_SECONDS)[TOPIC].result()
    _await(lambda: not any(_knows(server) for server in system.kafka.bootstrap_servers.split(",")), "it is still there")


def _knows(server: str) -> bool:
    """Return True if this broker lists the topic or does not answer."""
    admin = AdminClient({"bootstrap.servers": server, "log_level": 0})
    try:
        return TOPIC in admin.list_topics(timeout=_ANSWER_SECONDS).topics
    except KafkaException:
        return True


def _go_on(system: System) -> None:
    """Retry records that were parked because the topic was missing. End when no record is parked, a harvester delivers,
    and no harvester's cache can still say that the topic is missing."""
    believed = Deadline(_BELIEVED_SECONDS)
    with psycopg.connect(system.dsn, autocommit=True) as connection:

        def goes_on() -> bool:
            is_over = believed.passed and system.following.reader.has_read  # evaluated before the count
            if count(system.mode, connection):
                retry_all(system)
                return False
            return is_over

        _await(goes_on, "no harvester goes on with the topic that was recreated", _RETRY_SECONDS)


def acknowledged(history: Path, since: float, by: float) -> set[str]:
    """Return the events that Kafka acknowledged to harvesters from `since` on and before `by`, by the boot clock."""
    found: set[str] = set()
    for file in history.glob("harvester-*.jsonl"):
        events: dict[int, str] = {}
        for event in _told(file):
            if isinstance(event, Produce):
                events[event.id] = event.event
            elif isinstance(event, Acknowledge) and event.type == "ok" and since <= event.time < by:
                found.add(events[event.id])
    return found


def _told(file: Path) -> Iterator[Event]:
    """Yield the `produce` and `acknowledge` events of a history. Other lines are skipped without parsing."""
    with file.open("rb") as lines:
        for line in lines:
            if line.startswith(_OF_RECORDS):
                with suppress(ValueError):  # a killed harvester may leave an incomplete line
                    yield from_line(line)


def _await(condition: Callable[[], bool], otherwise: str, tick_seconds: float = 0.1) -> None:
    next_step = "read the logs of the brokers and the harvesters, beside the history"
    until(condition, _READY_SECONDS, otherwise, next_step=next_step, tick_seconds=tick_seconds)


FAULTS: Mapping[str, Fault] = {
    "topic-recreated": Fault(
        promise="unread records are gone; all later records are in the new topic, in order",
        inject=_topic_recreated,
        seconds=(1, 5),
    ),
}
