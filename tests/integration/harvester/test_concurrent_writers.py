"""Everything that concurrent writers may do, against whole harvesters: nothing is lost, and no key goes out of order.

Sixteen writers on eight keys, one more idle in a transaction; the same transactions write to an outbox for each way of
harvesting. The same workload must show the inversions of `transaction_id`, or a 0 of the others would mean nothing.
"""

import time
from contextlib import ExitStack

import psycopg
import pytest
from psycopg import sql
from support.outbox import harvest_config, read_topic
from support.waiting import eventually

from harvest_lib.audit import audit, read_query, read_topics
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import NativeTable, OutboxTable
from tests.benchmarks.approaches.judge import Poll, judge
from tests.benchmarks.approaches.writers import Writers

pytestmark = pytest.mark.full

SECONDS = 4

WAYS = {
    "mark": {"source": "mark"},
    "barrier": {"source": "snapshot", "delivery": "barrier"},
    "pipelined": {"source": "snapshot", "delivery": "pipelined"},
    "transactional": {"source": "snapshot", "delivery": "transactional"},
    "sequenced": {"source": "snapshot", "delivery": "sequenced"},
    "transaction_id": {"source": "transaction_id", "delivery": "pipelined"},
}

# The workload writes to two tables; here the one is nothing, and the other as many as there are ways.
_STAGE = """
CREATE SCHEMA approaches;
CREATE TABLE approaches.keys (key TEXT PRIMARY KEY, version BIGINT NOT NULL DEFAULT 0);
CREATE VIEW approaches.outbox AS SELECT ''::text AS kafka_key, 0::bigint AS number, ''::text AS kafka_value;
CREATE VIEW approaches.marked AS SELECT * FROM approaches.outbox;
CREATE FUNCTION approaches.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION approaches.spread() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {inserts} RETURN NEW; END $$;
CREATE TRIGGER nothing INSTEAD OF INSERT ON approaches.marked FOR EACH ROW EXECUTE FUNCTION approaches.nothing();
CREATE TRIGGER spread INSTEAD OF INSERT ON approaches.outbox FOR EACH ROW EXECUTE FUNCTION approaches.spread()
"""

_INSERT = """
INSERT INTO {table} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (clock_timestamp(), {topic}, NEW.kafka_key, NEW.number::text, '{{}}', '{{}}');
"""


class Stage:
    """An outbox and a topic for each way, and the harvesters of them."""

    def __init__(self, dsn, bootstrap_servers, make_topic, unique, *, goharvest):
        self.dsn, self.bootstrap_servers = dsn, bootstrap_servers
        self.topics = {way: make_topic(partitions=4) for way in WAYS}
        self.tables = {way: OutboxTable.parse(f"outbox_of_{way}") for way in WAYS}
        self._unique = unique
        with psycopg.connect(dsn, autocommit=True) as connection:
            for way, table in self.tables.items():
                if way == "mark" and goharvest:
                    table.create(connection)
                else:
                    NativeTable(outbox=table, segment_size=200).create(connection)
            inserts = [
                sql.SQL(_INSERT).format(table=self.tables[way].identifier, topic=self.topics[way]) for way in WAYS
            ]
            connection.execute(sql.SQL(_STAGE).format(inserts=sql.Composed(inserts)))

    def harvester(self, way):
        names = {"outbox_table": str(self.tables[way]).strip('"'), "checkpoint_topic": self._unique("checkpoints")}
        config = harvest_config(
            self.dsn,
            self.bootstrap_servers,
            self._unique("group"),
            leadership="solo",
            # So that nothing is sent again because the machine is busy; the session bounds the other.
            producer_kafka_config={"delivery.timeout.ms": 60_000},
            session_timeout_seconds=90,
            **names,
            **WAYS[way],
        )
        return Harvest(config)

    def records(self, way):
        """Return the committed records: key and number of each, every key's in the order of the log."""
        delivered = read_topic(self.bootstrap_servers, self.topics[way], isolation="read_committed")
        return [(record.key, int(record.value)) for record in delivered]

    def verdict(self, way, committed):
        return judge(committed, [Poll(0, 0, self.records(way))])

    def report(self, way):
        """The audit's: every id that was committed and no other, in order."""
        settings = {"bootstrap.servers": self.bootstrap_servers}
        observed = (record for batch in read_topics(settings, [self.topics[way]]) for record in batch)
        committed = sql.SQL("SELECT id, kafka_key FROM {}").format(self.tables[way].identifier)
        return audit(read_query(self.dsn, committed), observed)


@pytest.fixture
def stage(dsn, bootstrap_servers, make_topic, unique, request):
    return Stage(dsn, bootstrap_servers, make_topic, unique, goharvest=getattr(request, "param", True))


@pytest.mark.parametrize(("stage", "seed"), [(True, 1), (False, 2), (True, 3)], indirect=["stage"])
def test_nothing_is_lost_and_every_key_keeps_its_order(stage, seed):
    with ExitStack() as running:
        harvesters = {way: running.enter_context(stage.harvester(way)) for way in WAYS}
        with Writers(stage.dsn, seed=seed) as writers:
            time.sleep(SECONDS)  # it is the load that takes this long
        committed = writers.committed
        for way, harvester in harvesters.items():
            eventually(lambda h=harvester: h.delivered_records >= len(committed), f"{way} has delivered everything")
    assert len(committed) > 300
    assert len({key for key, _ in committed}) == 9
    for way in WAYS:
        found = stage.verdict(way, committed)
        assert (way, found.lost, found.repeated) == (way, 0, 0)
        if way == "transaction_id":
            assert found.reordered > 0, "the workload is too tame"
            continue
        assert (way, found.reordered) == (way, 0)
        if way != "mark":
            report = stage.report(way)
            assert (report.delivered, report.records) == (len(committed), len(committed)), way
            assert (report.lost, report.unknown, report.duplicates, report.order_violations) == (0, 0, 0, 0), way


def test_who_began_first_and_committed_last(stage):
    """A takes its transaction id; B writes to a key and commits; then A writes to it."""
    with psycopg.connect(stage.dsn) as a, psycopg.connect(stage.dsn) as b:
        a.execute("SELECT pg_current_xact_id()")
        insert = "INSERT INTO approaches.outbox (kafka_key, number) VALUES ('k', %s)"
        b.execute(insert, (1,))
        b.commit()
        a.execute(insert, (2,))
        a.commit()
    for way in WAYS:
        assert stage.harvester(way).drain(60).records == 2
        expected = [("k", 2), ("k", 1)] if way == "transaction_id" else [("k", 1), ("k", 2)]
        assert stage.records(way) == expected, way
