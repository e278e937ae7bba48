"""Thousands of rows as anybody may write them, through real servers, in every way of harvesting: sendable ones
arrive byte for byte and in order, the rest is parked by name, and the harvester comes to the end of it."""

from collections import defaultdict

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from psycopg import sql
from support.hostile import HostileRow, rows
from support.outbox import harvest_config

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.postgres.database import in_statement
from harvest_lib.record.header import HEADER_NAME, unpack

pytestmark = pytest.mark.gate

OUTBOX = OutboxTable(("outbox",))
MARK = {"source": "mark"}
NATIVE = {"source": "snapshot"}

WAYS = {
    "mark, barrier": {**MARK, "delivery": "barrier"},
    "mark, pipelined": {**MARK, "delivery": "pipelined"},
    "snapshot, transactional": {**NATIVE, "delivery": "transactional"},
    "snapshot, pipelined, bytes": {**NATIVE, "delivery": "pipelined"},
}
MORE_WAYS = {
    "mark, pipelined, skip": {**MARK, "delivery": "pipelined", "parking": "skip"},
    "mark, transactional": {**MARK, "delivery": "transactional"},
    "transaction_id, barrier": {"source": "transaction_id", "delivery": "barrier", "parking": "skip"},
}
ENDS_AT_A_BAD_ONE = ["mark, transactional"]
"""Nothing is parked there, as documented."""

INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (%s::timestamptz, %s, %s, %s, %s::text[], %s::text[])
"""


class Kept:
    """A message as it is in Kafka, in bytes, the way that it was sent."""

    def __init__(self, message):
        headers = message.headers() or []
        assert headers[-1][0] == HEADER_NAME
        _, self.id = unpack(headers[-1][1])
        self.key, self.value, self.headers = message.key(), message.value(), headers[:-1]


def read(bootstrap_servers, topic):
    """Read what is committed, in the order of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "reader", "enable.auto.commit": False})
    numbers = consumer.list_topics(topic, 60).topics[topic].partitions
    partitions = [TopicPartition(topic, number, 0) for number in numbers]
    ends = {each.partition: consumer.get_watermark_offsets(each, 60)[1] for each in partitions}
    consumer.assign(partitions)
    found = []
    try:
        while any(max(0, at.offset) < ends[at.partition] for at in consumer.position(partitions)):
            found += [Kept(message) for message in consumer.consume(1000, timeout=0.1) if not message.error()]
    finally:
        consumer.close()
    return found


def make_table(connection, source, *, value_type):
    if source == "mark":
        OUTBOX.create(connection)
        ParkedRecords(OUTBOX).create(connection)
    else:
        NativeTable(outbox=OUTBOX, value_type=value_type).create(connection)


def write(connection, topic, found, *, as_bytes):
    """Insert all in one transaction and return them by id."""

    def value(row):
        return row.value.encode() if as_bytes and row.value is not None else row.value

    values = [
        (row.created, topic if row.topic is None else row.topic, row.key, value(row), row.names, row.contents)
        for row in found
    ]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(INSERT, values)
    ids = [each for (each,) in connection.execute("SELECT id FROM outbox ORDER BY id")]
    return dict(zip(ids, found, strict=True))


def parked_in(connection, name):
    found = connection.execute(sql.SQL("SELECT id, held, reason FROM {}").format(sql.Identifier(name)))
    return {each: (held, reason) for each, held, reason in found}


def expected(written, *, holds):
    """Return which rows arrive, which are parked, and which are held behind one of those."""
    arrive, parked, held, doomed = [], [], [], set()
    for record_id, row in sorted(written.items()):
        if holds and (row.topic, row.key) in doomed:
            held.append(record_id)
        elif row.reason is not None:
            parked.append(record_id)
            doomed.add((row.topic, row.key))
        else:
            arrive.append(record_id)
    return arrive, parked, held


def as_sent(row):
    """Return key, value and headers in bytes."""
    names, contents = row.names, row.contents
    if isinstance(names, str):
        names, contents = ["a"], ["b"]
    headers = [(name, each if each is None else each.encode()) for name, each in zip(names, contents, strict=True)]
    return row.key.encode(), row.value if row.value is None else row.value.encode(), headers


def check(way, name, found, *, dsn, topic, bootstrap_servers, group_id):
    as_bytes = name.endswith("bytes")
    with psycopg.connect(dsn, autocommit=True) as connection:
        make_table(connection, way["source"], value_type="bytea" if as_bytes else "text")
        written = write(connection, topic, found, as_bytes=as_bytes)
        config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", **way)
        Harvest(config).drain(60)
        found_parked = parked_in(connection, "outbox_parked" if way["source"] == "mark" else "outbox_parked_ids")
    kept = read(bootstrap_servers, topic)
    compare(written, kept, found_parked, holds=way.get("parking") != "skip", once=way["delivery"] == "transactional")


def compare(written, kept, found_parked, *, once, holds=True, sent=as_sent):
    """Hold what is in Kafka, and what was parked, against what was written."""
    arrive, parked, held = expected(written, holds=holds)
    first = {each.id: each for each in reversed(kept)}
    # Else a record that the client itself refuses fails its batch, and on a slow machine so does a deadline.
    assert len(kept) == len(first) or not once
    kept = [each for each in kept if first[each.id] is each]
    assert sorted(each.id for each in kept) == arrive
    for each in kept:
        assert (each.key, each.value, each.headers) == sent(written[each.id])
    order = defaultdict(list)
    for each in kept:
        order[each.key].append(each.id)
    assert all(ids == sorted(ids) for ids in order.values())
    assert {each for each, (is_held, _) in found_parked.items() if is_held} == set(held)
    assert {each for each, (is_held, _) in found_parked.items() if not is_held} == set(parked)
    for each in parked:
        assert written[each].reason in found_parked[each][1]


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", WAYS)
def test_every_row_arrives_or_is_parked_by_name(name, dsn, make_topic, bootstrap_servers, group_id):
    check(
        WAYS[name],
        name,
        rows(150, share_bad=0.2, number=1),
        dsn=dsn,
        topic=make_topic(partitions=3),
        bootstrap_servers=bootstrap_servers,
        group_id=group_id,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", [*WAYS, *MORE_WAYS])
def test_so_do_ten_thousand(name, dsn, make_topic, bootstrap_servers, group_id):
    check(
        {**WAYS, **MORE_WAYS}[name],
        name,
        rows(1_429, share_bad=0 if name in ENDS_AT_A_BAD_ONE else 0.01, number=len(name)),
        dsn=dsn,
        topic=make_topic(partitions=3),
        bootstrap_servers=bootstrap_servers,
        group_id=group_id,
    )


TABLE = """o"t's %s {} 50% ü;--"""
COLUMNS = {
    "id": 'p"o;s',
    "transaction_id": "t{}x",
    "kafka_topic": "to'pic",
    "kafka_key": "k%sey",
    "kafka_value": "va\nlue %(x)s",
    "headers": {"ü%s{}'\";--": "he ad%er"},
}
MAPPED = """
CREATE TABLE {table} (
  {id} BIGSERIAL PRIMARY KEY, {transaction_id} XID8 NOT NULL DEFAULT pg_current_xact_id(),
  {kafka_topic} TEXT, {kafka_key} TEXT, {kafka_value} TEXT, {header} TEXT
);
CREATE INDEX ON {table} ({transaction_id}, {id})
"""
MAPPED_INSERT = """
INSERT INTO {table} ({kafka_topic}, {kafka_key}, {kafka_value}, {header}) VALUES (%s, NULLIF(%s, ''), %s, %s)
"""
NO_TOPIC = [(None, "not legal"), ("t" * 250, "not legal"), ("t" * 100_000, "not legal"), ("a\u202eb", "not legal")]


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["barrier", "transactional"])
def test_a_table_of_another_layout_and_of_odd_names(dsn, make_topic, bootstrap_servers, group_id, delivery):
    """Whatever stands in a column without a limit, null keys and topics among it; and names are only names."""
    topic = make_topic(partitions=3)
    found = rows(100, share_bad=0.05, number=2, header_arrays=False)
    found += [
        HostileRow(topic=name, key=f"topics-{at}", value="", reason=said) for at, (name, said) in enumerate(NO_TOPIC)
    ]
    found.append(HostileRow(topic="", key="K" * 50_000, value="", reason="not legal"))
    found.append(HostileRow(topic=topic, key="K" * 50_000, value="v" * 500_000))
    found.append(HostileRow(topic=topic, key="large", value="v" * 1_100_000, reason="size"))
    found.append(HostileRow(topic=topic, key="large", value="held"))

    def content(row):
        return None if not row.contents or isinstance(row.contents, str) else row.contents[0]

    def sent(row):
        value, header = row.value, content(row)
        name = next(iter(COLUMNS["headers"]))
        return (
            row.key.encode(),
            value if value is None else value.encode(),
            [(name, header if header is None else header.encode())],
        )

    named = {part: sql.Identifier(column) for part, column in COLUMNS.items() if part != "headers"}
    names = {**named, "table": sql.Identifier(TABLE), "header": sql.Identifier(*COLUMNS["headers"].values())}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(MAPPED).format(**names))
        statement = sql.SQL(MAPPED_INSERT).format(**{part: in_statement(each) for part, each in names.items()})
        with connection.transaction(), connection.cursor() as cursor:
            for row in found:
                to = row.topic if row.topic is not None or row.reason else topic
                cursor.execute(statement, (to, row.key, row.value, content(row)))
        config = harvest_config(
            dsn, bootstrap_servers, group_id, leadership="solo", delivery=delivery, outbox_table=TABLE, columns=COLUMNS
        )
        Harvest(config).drain(60)
        found_parked = parked_in(connection, f"{TABLE}_parked_ids")
    compare(
        dict(enumerate(found, 1)),
        read(bootstrap_servers, topic),
        found_parked,
        once=delivery == "transactional",
        sent=sent,
    )
