"""Debezium's outbox event router in Kafka Connect, on a table as its documentation describes it.

The log is read from where the replication slot is: a backlog is written after the slot was made.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from harvest_lib.errors import StackError
from harvest_lib.local_stack.jars import JarSet, resolve
from harvest_lib.local_stack.java import find_java
from tests.benchmarks.backlog import KEYS, VALUE_BYTES
from tests.benchmarks.compare.connect import HEAP, Connect, Worker, properties
from tests.benchmarks.compare.peer import Built, LeftOutError, Place

CONNECT, DEBEZIUM = "4.4.0", "3.7.0.Final"
"""The newest pair whose parts are all to be had; its clients speak to older brokers."""

_CONNECT_JARS = JarSet(
    name=f"connect-{CONNECT}",
    coordinates=(
        *(f"org.apache.kafka:connect-{part}:{CONNECT}" for part in ("runtime", "json", "transforms")),
        "org.slf4j:slf4j-simple:1.7.36",
    ),
)
_DEBEZIUM_JARS = JarSet(
    name=f"debezium-{DEBEZIUM}", coordinates=(f"io.debezium:debezium-connector-postgres:{DEBEZIUM}",)
)
_SLOT = "compare"

_TABLE = """
DROP TABLE IF EXISTS debezium_outbox;
CREATE TABLE debezium_outbox (
  id uuid NOT NULL PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
  type varchar(255) NOT NULL, payload text
)
"""
_FORGET = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
_SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
_STREAMS = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active"
_FILL = """
INSERT INTO debezium_outbox
SELECT gen_random_uuid(), %(topic)s, 'key-' || (random() * %(keys)s)::int, 'made',
       left(repeat(md5(random()::text), 7), %(bytes)s)
FROM generate_series(1, %(records)s)
"""
_INSERT = "INSERT INTO debezium_outbox VALUES (gen_random_uuid(), %s, %s, 'made', %s)"
_TRANSACTION_RECORDS = 10_000
_LONGEST_SECONDS = 30
_LOOK_SECONDS = 0.1

_WORKER: Mapping[str, Any] = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "config.storage.replication.factor": 1,
    "offset.storage.replication.factor": 1,
    "offset.storage.partitions": 1,
    "status.storage.replication.factor": 1,
    "status.storage.partitions": 1,
    "plugin.discovery": "service_load",
    # Its default is five minutes: so long the tasks of a worker that died wait for it.
    "scheduled.rebalance.max.delay.ms": 0,
}
_CONNECTOR: Mapping[str, Any] = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": 1,
    "topic.prefix": "compare",
    "plugin.name": "pgoutput",
    "slot.name": _SLOT,
    "publication.name": _SLOT,
    "publication.autocreate.mode": "filtered",
    "table.include.list": "public.debezium_outbox",
    "snapshot.mode": "no_data",
    "tombstones.on.delete": "false",
    "max.batch.size": 32_768,
    "max.queue.size": 131_072,
    "poll.interval.ms": 10,
    "producer.override.compression.type": "lz4",
    "producer.override.batch.size": 1_048_576,
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.route.topic.replacement": "${routedByValue}",
    "transforms.outbox.table.expand.json.payload": "false",
}


@dataclass(slots=True, kw_only=True)
class Debezium:
    """Kafka Connect from Maven's coordinates, with the connector as a plugin."""

    name: str = "debezium"
    title: str = "Debezium"
    share: float = 1.0
    insert_one: str = _INSERT
    worker: Mapping[str, Any] = field(default_factory=lambda: _WORKER)
    connector: Mapping[str, Any] = field(default_factory=lambda: _CONNECTOR)
    _java: Path = field(default=Path(), init=False)
    _jars: list[Path] = field(default_factory=list, init=False)
    _plugin: Path = field(default=Path(), init=False)

    def build(self, state: Path) -> Built:
        """Bring the jars."""
        try:
            self._java = find_java(state)
            self._jars = resolve(_CONNECT_JARS, state)
            self._plugin = resolve(_DEBEZIUM_JARS, state)[0].parent
        except StackError as reason:
            raise LeftOutError(str(reason)) from reason
        text = f"# java {' '.join(HEAP)}\n{properties(self.worker)}\n{properties(self.connector)}"
        return Built(versions={"Debezium": DEBEZIUM, "Kafka Connect": CONNECT}, configuration=text)

    def make(self, place: Place) -> None:
        """Make the table; no slot is there yet."""
        with psycopg.connect(place.servers.dsn, autocommit=True) as connection:
            _forget(connection)
            connection.execute(f"DROP PUBLICATION IF EXISTS {_SLOT}")
            connection.execute(_TABLE)

    def insert(self, place: Place, records: int) -> None:
        """Add a backlog."""
        known = {"topic": place.servers.topic, "keys": KEYS, "bytes": VALUE_BYTES}
        with psycopg.connect(place.servers.dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            for first in range(0, records, _TRANSACTION_RECORDS):
                connection.execute(_FILL, {**known, "records": min(_TRANSACTION_RECORDS, records - first)})
            connection.execute("VACUUM ANALYZE debezium_outbox")
            connection.execute("CHECKPOINT")

    @contextmanager
    def run(self, place: Place, *, members: int) -> Iterator[Connect]:
        """Run so many workers of one group."""
        servers, folder = place.servers, place.folder / place.servers.topic
        plugins = folder / "plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        (plugins / "debezium").symlink_to(self._plugin)
        topics = {f"{each}.storage.topic": f"{servers.topic}.{each}" for each in ("config", "offset", "status")}
        own = {"bootstrap.servers": servers.bootstrap_servers, "group.id": servers.topic, "plugin.path": plugins}
        settings = {**own, **topics, **self.worker}
        workers = [Worker(number, folder, settings, self._java, self._jars) for number in range(1, members + 1)]
        known = conninfo_to_dict(servers.dsn)
        database = {
            "database.hostname": known["host"],
            "database.port": known["port"],
            "database.user": known["user"],
            "database.password": known.get("password", ""),
            "database.dbname": known["dbname"],
        }
        connect = Connect(workers, servers.topic, {**self.connector, **database})
        with psycopg.connect(servers.dsn, autocommit=True) as connection:
            try:
                connect.start(lambda: connection.execute(_STREAMS, (_SLOT,)).fetchone() == (1,))
                yield connect
            finally:
                connect.stop()
                _forget(connection)  # it would keep the log for ever


def _forget(connection: psycopg.Connection[Any]) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while connection.execute(_SLOTS, (_SLOT,)).fetchone() != (0,):
        connection.execute(_FORGET, (_SLOT,))
        if time.monotonic() > deadline:
            raise RuntimeError(f"the replication slot {_SLOT} is in use")
        time.sleep(_LOOK_SECONDS)
