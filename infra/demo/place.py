"""Where a demo runs: a database, a topic and a leader group, on the demo's own stack or on the user's servers.

On its own stack the demo begins each run without data. On servers that the user named, it makes a database and topics
under unique names, and removes them at the end.
"""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import make_conninfo

from harvest_lib.config import HarvestConfig
from harvest_lib.config.model import default_checkpoint_topic
from harvest_lib.conninfo import parameters_of
from harvest_lib.harvester.status import StatusReader
from harvest_lib.kafka_topics import create_topic
from harvest_lib.local_stack import Stack
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.native_table import NativeTable
from harvest_lib.postgres.database import connect
from harvest_lib.postgres.translation import translated
from infra.processes import environment

PARTITIONS = 8

_TOPIC_CONFIG = {
    "message.timestamp.type": "LogAppendTime"
}  # the timestamp of a record is the time of its append in Kafka, not of the first attempt to send it
_REMOVE_SECONDS = 10
_NATIVE = "exactly_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Names and addresses of a run. `dsn` contains the password."""

    dsn: str
    bootstrap_servers: str
    topic: str
    group: str
    outbox: str = "outbox"
    own_kafka: bool = True
    """True if the brokers belong to the demo. Their settings are known then, and the next run deletes their data, so
    this run removes no topics."""

    @property
    def kafka(self) -> dict[str, str | int | float | bool]:
        """The settings of a Kafka client."""
        return {"bootstrap.servers": self.bootstrap_servers}

    def dsn_without_password(self) -> str:
        """Return the DSN without its password, for a command line, which other users can read."""
        parameters = parameters_of(self.dsn)
        parameters.pop("password", None)
        return make_conninfo("", **parameters)

    def environment(self) -> dict[str, str]:
        """Return the environment for a program that gets `dsn_without_password`: this process's environment with the
        password, and without the variables of harvesters and of libpq."""
        password = parameters_of(self.dsn).get("password", "")
        return {**environment("PG"), "PGPASSWORD": password}

    def reaper_yaml(self, **more: object) -> str:
        """Return a harvester's configuration as YAML in goharvest's spelling, with the additional settings `more`. The
        text contains the password."""
        harvest = {
            "baseKafkaConfig": {"bootstrap.servers": self.bootstrap_servers},
            "producerKafkaConfig": {"compression.type": "lz4"},
            "leaderGroupID": self.group,
            "dataSource": self.dsn,
            "outboxTable": self.outbox,
            **more,
        }
        return yaml.safe_dump({"harvest": harvest, "logging": {"level": "Info"}}, sort_keys=False)


@contextmanager
def made(stack: Stack, *, topic: str = "flights") -> Iterator[Place]:
    """Make the outbox table and the topic. At the end, remove database and topics from the user's servers."""
    own = secrets.token_hex(4)
    with ExitStack() as removal:
        dsn = stack.dsn if stack.postgres else removal.enter_context(_database(stack.dsn, f"harvest_demo_{own}"))
        suffix = "" if stack.kafka else f"-{own}"
        place = Place(
            dsn=dsn,
            bootstrap_servers=stack.bootstrap_servers,
            topic=f"{topic}{suffix}",
            group=f"harvest-demo{suffix}",
            own_kafka=stack.kafka is not None,
        )
        with connect(place.dsn) as connection:
            OutboxTable.parse(place.outbox).create(connection)
        removal.enter_context(_topic(place))
        yield place


@contextmanager
def native(place: Place) -> Iterator[Place]:
    """Make a native outbox in the same database, with its own topic and leader group."""
    beside = replace(place, topic=f"{place.topic}-exactly-once", group=f"{place.group}-exactly-once", outbox=_NATIVE)
    with connect(beside.dsn) as connection:
        NativeTable(outbox=OutboxTable.parse(beside.outbox)).create(connection)
    with _topic(beside):
        yield beside


@contextmanager
def _topic(place: Place) -> Iterator[None]:
    """Make the topic. At the end, remove from the user's brokers this topic and the topics that harvesters made."""
    try:
        create_topic(place.kafka, place.topic, partitions=PARTITIONS, config=_TOPIC_CONFIG)
        yield
    finally:
        if not place.own_kafka:
            _remove_topics(place)


def is_delivered(dsn: str, group: str, outbox: str = "outbox") -> bool:
    """Return True if no record waits in an outbox."""
    config = HarvestConfig(data_source=dsn, leader_group_id=group, outbox_table=outbox)
    with connect(dsn) as connection:
        return StatusReader(connection, config).waiting().is_empty


@contextmanager
def _database(dsn: str, name: str) -> Iterator[str]:
    with connect(dsn) as connection, translated():
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield make_conninfo(dsn, dbname=name)
    finally:
        with connect(dsn) as connection, translated():
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _remove_topics(place: Place) -> None:
    admin = AdminClient(place.kafka)
    answers = [
        *admin.delete_topics(
            [place.topic, f"{place.group}.neli", default_checkpoint_topic(place.group, "default")],
            operation_timeout=_REMOVE_SECONDS,
        ).values(),
        *admin.delete_consumer_groups([place.group], request_timeout=_REMOVE_SECONDS).values(),
    ]
    for answer in answers:
        with suppress(KafkaException):  # a topic or group that was never made
            answer.result(_REMOVE_SECONDS)
