"""Pools of few names on outboxes of few names: none ever goes on from another outbox's checkpoint.

Each pool delivers all of its own outbox, or stops with an error; and it stops only where another outbox has its names,
or where its own outbox was delivered under others.
"""

import uuid
from collections import Counter

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.outbox import harvest_config, read_topic

from harvest_lib.errors import CheckpointError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import NativeTable, OutboxTable, append
from harvest_lib.record import OutboxRecord

pytestmark = pytest.mark.full

FOUND = [("a", "outbox"), ("b", "outbox"), ("a,b", "outbox"), ("b,a", "outbox"), ("b", "a.outbox"), ("a", "b.outbox")]
"""Search path and name; the table that is meant is in the schema that the name has, or the path begins with."""

pools = st.fixed_dictionaries(
    {
        "database": st.integers(0, 1),
        "found": st.sampled_from(FOUND),
        "group": st.integers(0, 1),
        "subscription": st.sampled_from(["default", "default", "more"]),
        "delivery": st.sampled_from(["transactional", "transactional", "barrier"]),
    }
)
steps = st.lists(st.tuples(pools, st.integers(0, 2)), min_size=3, max_size=7)


class Databases:
    """Two databases, each with an outbox in two schemas, and who has come where."""

    def __init__(self, stack, servers, make_topic):
        self.servers = servers
        self.unique = uuid.uuid4().hex[:8]
        self.dsns = [self._database(stack, number) for number in range(2)]
        tables = [(database, schema) for database in range(2) for schema in ("a", "b")]
        self.topics = {table: make_topic(name=f"identity-{self.unique}-{table[0]}{table[1]}") for table in tables}
        self.written = Counter()
        self.arrived = {table: set() for table in tables}
        self.owners: dict = {}  # of a group and subscription in Kafka: the table
        self.kept: dict = {}  # of a table's subscription: the group that its last checkpoint in Kafka is of, or None
        self.delivered: dict = {}

    def _database(self, stack, number):
        name = f"identity_{self.unique}_{number}"
        with psycopg.connect(stack.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        dsn = make_conninfo(stack.dsn, dbname=name)
        with psycopg.connect(dsn, autocommit=True) as connection:
            for schema in ("a", "b"):
                connection.execute(f"CREATE SCHEMA {schema}")
                NativeTable(outbox=OutboxTable((schema, "outbox"))).create(connection)
        return dsn

    def write(self, table, rows):
        database, schema = table
        with psycopg.connect(self.dsns[database], autocommit=True) as connection:
            records = [OutboxRecord(topic=self.topics[table], key="k", value="v") for _ in range(rows)]
            append(connection, records, table=f"{schema}.outbox")
        self.written[table] += rows

    def step(self, pool, rows, tally):
        path, name = pool["found"]
        table = (pool["database"], (name if "." in name else path)[0])
        self.write(table, rows + 1)
        dsn = make_conninfo(self.dsns[pool["database"]], options=f"-c search_path={path}")
        group, subscription = f"identity-{self.unique}-{pool['group']}", pool["subscription"]
        config = harvest_config(
            dsn,
            self.servers,
            group,
            leadership="solo",
            source="snapshot",
            outbox_table=name,
            subscription=subscription,
            delivery=pool["delivery"],
        )
        in_kafka = pool["delivery"] == "transactional"
        is_taken = in_kafka and self.owners.get((group, subscription), table) != table
        is_elsewhere = in_kafka and self.kept.get((table, subscription), group) not in {group, None}
        before = self.count(table)
        try:
            Harvest(config).drain(60)
        except CheckpointError:
            tally["refused"] += 1
            assert is_taken or is_elsewhere, "nobody else has its names"
            assert self.count(table) == before, "it has delivered before it was refused"
            return
        tally["delivered"] += 1
        assert not is_taken, "it goes on from another's checkpoint"
        self.kept[table, subscription] = group if in_kafka else None
        if in_kafka:
            self.owners[group, subscription] = table
        each = self.delivered.setdefault((table, subscription), 0)
        self.delivered[table, subscription] = self.written[table]
        assert self.count(table) - before == self.written[table] - each, "not all of its own, and once"

    def count(self, table):
        return len(read_topic(self.servers, self.topics[table], isolation="read_committed"))

    def close(self, stack):
        with psycopg.connect(stack.dsn, autocommit=True) as connection:
            for number in range(2):
                name = sql.Identifier(f"identity_{self.unique}_{number}")
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def test_no_pool_goes_on_from_another_s_checkpoint(stack, bootstrap_servers, make_topic):
    tally: Counter = Counter()

    @settings(
        max_examples=14,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[*HealthCheck],
        derandomize=True,  # it counts what was drawn
    )
    @given(steps)
    def pools_take_turns(turns):
        databases = Databases(stack, bootstrap_servers, make_topic)
        try:
            for pool, rows in turns:
                databases.step(pool, rows, tally)
        finally:
            databases.close(stack)

    pools_take_turns()
    assert min(tally["refused"], tally["delivered"]) > 4, tally
