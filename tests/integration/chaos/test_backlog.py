"""The undelivered records of a promoted server, by chaos: those that its next reader reads, and nothing else."""

import json

import pytest
from psycopg.types.json import Jsonb
from support.outbox import Outbox
from support.paged import RealPagedTable
from support.waiting import eventually

from infra.chaos.faults.failover import backlog_of
from infra.chaos.system import SystemMode

pytestmark = pytest.mark.full


def value_of(event):
    return json.dumps({"event": event, "padding": ""})


@pytest.fixture(params=["snapshot", "transaction_id"])
def table(request, dsn):
    made = RealPagedTable(dsn, request.param, value_type="text")
    made.connection.execute(
        "INSERT INTO outbox_subscriptions (subscription, shard, shards, source) VALUES ('default', 0, 1, %s)",
        [request.param],
    )
    yield made
    made.close()


def backlog(table, position, **more):
    """Return it, as a server knows that has this position."""
    checkpoint = None if position is None else Jsonb({"number": 1, "position": {**position, **more}})
    table.connection.execute("UPDATE outbox_subscriptions SET checkpoint = %s", [checkpoint])
    return backlog_of(table.connection, SystemMode(source=table.kind))


def read_all(table, records):
    """Read so many by small pages; return what was read behind each position, the first one's first."""
    source = table.source()
    positions, read = [source.open(None)], []
    while sum(map(len, read)) < records:
        page = eventually(lambda: source.read(2), "no transaction elsewhere is open")
        read.append({json.loads(row[3])["event"] for row in page.rows})
        positions.append(page.position)
    source.close()
    behind = [set().union(*read[number:]) for number in range(len(positions))]
    return list(zip(positions, behind, strict=True))


def test_it_is_what_is_read_from_there_on(table):
    for number in range(4):
        table.write("k", value_of(f"early-{number}"))
    late = table.begin()
    late.write("l", value_of("late-0"), value_of("late-1"), value_of("late-2"))
    for number in range(3):
        table.write("k", value_of(f"meanwhile-{number}"))
    position, _ = read_all(table, 7 if table.kind == "snapshot" else 4)[-1]
    late.commit()
    table.write("k", value_of("last"))
    found = read_all(table, 11)
    assert len(found) > 5
    for each, behind in found:
        assert backlog(table, each) == behind
    assert backlog(table, None) == found[0][1]
    came_since = {"last", *(f"late-{number}" for number in range(3))}
    assert came_since <= backlog(table, position) < found[0][1]


def test_what_was_deferred_or_parked_is_to_be_delivered(table):
    ids = [row[0] for row in table.write("k", *(value_of(f"e{number}") for number in range(4)))]
    position, _ = read_all(table, 4)[-1]
    assert backlog(table, position) == set()
    assert backlog(table, position, deferred=[ids[1]]) == {"e1"}
    table.connection.execute(
        "INSERT INTO outbox_parked_ids (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id)"
        " VALUES ('default', 0, %s, 't', 'k', 'too large', false, '0')",
        [ids[2]],
    )
    assert backlog(table, position) == {"e2"}


def test_what_is_marked_is_to_be_delivered_until_it_is_deleted(dsn):
    outbox = Outbox(dsn, "t")
    for number in range(3):
        outbox.connection.execute(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys,"
            " kafka_header_values) VALUES (now(), 't', 'k', %s, '{}', '{}')",
            [value_of(f"e{number}")],
        )
    outbox.connection.execute("DELETE FROM outbox WHERE kafka_value LIKE '%e0%'")
    outbox.connection.execute(
        "WITH moved AS (DELETE FROM outbox WHERE kafka_value LIKE '%e1%' RETURNING *)"
        " INSERT INTO outbox_parked (id, kafka_topic, kafka_key, reason, held, record)"
        " SELECT id, kafka_topic, kafka_key, 'too large', false, to_jsonb(moved) FROM moved"
    )
    assert backlog_of(outbox.connection, SystemMode(source="mark")) == {"e1", "e2"}
    outbox.close()
