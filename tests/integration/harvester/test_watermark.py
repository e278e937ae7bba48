"""The watermark on the real Postgres: what was committed before it is delivered, whatever waits, is open or parked."""

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.outbox import Outbox, harvest_config
from support.subscribed import Subscribed

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.watermark import Watermark

pytestmark = pytest.mark.gate

_INSERT = """
INSERT INTO {} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp() + interval '1 hour', %(topic)s, 'late', string_agg(md5(random()::text), ''), '{{}}', '{{}}'
FROM generate_series(1, %(parts)s)
"""


@pytest.fixture(params=["mark", "snapshot"])
def harvested(request, dsn, make_topic, bootstrap_servers, group_id):
    """An outbox, its configuration, and a function that delivers what waits."""
    topic = make_topic(partitions=1, **{"max.message.bytes": 3_000})
    if request.param == "snapshot":
        made = Subscribed(dsn, topic, bootstrap_servers, group_id)
        settings = {"source": "snapshot", "delivery": "transactional"}
    else:
        made, settings = Outbox(dsn, topic), {"source": "mark"}
    config = harvest_config(dsn, bootstrap_servers, group_id, **settings)
    yield made, config, lambda: Harvest(config).drain()
    made.close()


@pytest.fixture
def read(harvested, dsn):
    _, config, _ = harvested
    watermark = Watermark()

    def look(watermark=watermark):
        with psycopg.connect(dsn, autocommit=True) as connection:
            return watermark.read(connection, config)

    return look


def insert(connection, outbox, parts=1):
    connection.execute(sql.SQL(_INSERT).format(outbox.name.identifier), {"topic": outbox.topic, "parts": parts})


def now(outbox):
    return outbox.connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()[0]


def test_the_time_advances_once_the_records_of_a_reading_are_delivered(harvested, read):
    outbox, _, deliver = harvested
    outbox.fill(20)
    before = now(outbox)
    found = read()
    assert (found.waiting.records, found.delivered_until) == (20, None)
    outbox.fill(1)
    deliver()
    outbox.fill(1)
    last = read()
    assert last.waiting.records == 1
    assert before < last.delivered_until < now(outbox)
    deliver()
    assert read().delivered_until > last.delivered_until


@pytest.mark.full
def test_a_record_that_is_committed_late_does_not_lie_before_the_time(harvested, read, dsn):
    outbox, _, deliver = harvested
    with psycopg.connect(dsn) as late:
        insert(late, outbox)
        outbox.fill(5)
        assert read().delivered_until is None
        deliver()
        until = read().delivered_until
        committing = now(outbox)
        late.commit()
    found = read()
    assert found.waiting.records > 0
    assert (found.delivered_until or 0.0) < committing
    assert found.delivered_until == until, "it stays where it was while the late record waits"
    deliver()
    assert read().delivered_until > committing


def test_a_parked_record_holds_the_time_back(harvested, read):
    outbox, config, deliver = harvested
    deliver()
    before = read().delivered_until
    assert before is not None
    insert(outbox.connection, outbox, parts=300)  # larger than the topic takes
    parking = now(outbox)
    deliver()
    found = read()
    assert found.waiting.records == 0
    assert found.delivered_until == before < parking
    outbox.fill(3)
    deliver()
    assert read().delivered_until == before
    name = outbox.name.parked if config.source == "mark" else outbox.name.parked_ids
    outbox.connection.execute(sql.SQL("DELETE FROM {}").format(name.identifier))
    assert read().delivered_until > parking


def test_nothing_is_said_where_the_parked_records_may_not_be_read(harvested, read, monkeypatch):
    monkeypatch.setattr("harvest_lib.harvester.watermark._READABLE", "SELECT false, %(side)s::text IS NULL")
    assert read().delivered_until is None


def test_nothing_is_said_where_a_policy_hides_parked_records(harvested, dsn, unique):
    outbox, config, deliver = harvested
    side = outbox.name.parked if config.source == "mark" else outbox.name.parked_ids
    names = {"role": sql.Identifier(unique("seer")[:60]), "side": side.identifier}

    def do(statement):
        outbox.connection.execute(sql.SQL(statement).format(**names))

    deliver()
    do("CREATE ROLE {role} LOGIN PASSWORD 'p'")
    try:
        do("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        do("ALTER TABLE {side} ENABLE ROW LEVEL SECURITY")
        limited = make_conninfo(dsn, user=names["role"].as_string(None).strip('"'), password="p")
        with psycopg.connect(limited, autocommit=True) as connection:
            assert Watermark().read(connection, config).delivered_until is None
            do("CREATE POLICY all_rows ON {side} USING (true)")
            assert Watermark().read(connection, config).delivered_until is not None
    finally:
        do("DROP OWNED BY {role}; DROP ROLE {role}")
