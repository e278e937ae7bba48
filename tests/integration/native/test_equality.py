"""Python and the native library hand over the same: keys, values, headers and order of each partition, byte by byte.

Of every delivery, and of every layout of the table, with the record header and without; and the same rows are parked.
"""

import logging
import random
import time
from itertools import groupby

import psycopg
import pytest
from support.outbox import harvest_config
from support.row_shapes import drawn, ends, runs

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.native import implementation
from harvest_lib.outbox import NativeTable, OutboxTable

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        implementation().library is None, reason=f"there is no native library here: {implementation().reason}"
    ),
]

_NATIVE = "kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
_MAPPED = """
CREATE TABLE outbox (
  position BIGSERIAL PRIMARY KEY, topic TEXT NOT NULL, key VARCHAR(100), data JSONB, type TEXT, source VARCHAR(200),
  transaction_id XID8 NOT NULL DEFAULT pg_current_xact_id()
);
CREATE INDEX ON outbox (transaction_id, position)
"""
_COLUMNS = {
    "id": "position",
    "kafka_topic": "topic",
    "kafka_key": "key",
    "kafka_value": "data",
    "headers": {"type": "type", "ключ": "source", "from": {"value": "100% 'billing'"}},
}
_LAYOUTS = {
    "varchar": {},
    "text": {"record_header": False},
    "bytea": {},
    "mapped": {"columns": _COLUMNS, "record_header": False},
}
_ROWS_OF_A_TRANSACTION = 40_000
_KEYS = 100
"""Of each text, under the barrier: of a page about half may go, and the rest waits in the page that is kept."""
_PARKED = "SELECT id, kafka_topic, kafka_key, reason, held FROM outbox_parked_ids WHERE subscription = %s ORDER BY id"


def make_outbox(connection, kind):
    if kind == "mapped":
        connection.execute(_MAPPED)
    else:
        NativeTable(outbox=OutboxTable.parse("outbox"), value_type=kind).create(connection)


def insert(dsn, rows, kind):
    """Insert rows, each transaction's of one length."""
    columns = "topic, key, data, type, source" if kind == "mapped" else _NATIVE
    with psycopg.connect(dsn) as connection:
        for _, some in groupby(enumerate(rows), key=lambda each: each[0] // _ROWS_OF_A_TRANSACTION):
            with connection.cursor().copy(f"COPY outbox ({columns}) FROM STDIN") as copy:
                for _, (topic, key, value, names, contents) in some:
                    if kind == "mapped":
                        type_, source, *_ = [*contents, None, None]
                        copy.write_row((topic, key or None, value, type_, source))
                    else:
                        copy.write_row((topic, key, value, names, contents))
            connection.commit()


@pytest.mark.parametrize("kind", list(_LAYOUTS))
@pytest.mark.parametrize(
    "delivery", ["transactional", "pipelined", "sequenced", pytest.param("barrier", marks=pytest.mark.gate(cases=1))]
)
@pytest.mark.parametrize("count", [3_000, pytest.param(250_000, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_both_write_the_same(dsn, bootstrap_servers, group_id, make_topic, use, handed_over, delivery, kind, count):
    """A million rows of each delivery in all, when the long ones run too; of a tenth some cannot be sent.

    Under the barrier the keys repeat in each page: some rows of it are picked, and the others go later.
    """
    began, is_barrier = time.monotonic(), delivery == "barrier"
    with psycopg.connect(dsn, autocommit=True) as connection:
        make_outbox(connection, kind)
    topics = [make_topic(partitions=3), make_topic(partitions=1)]
    dice = random.Random(f"{delivery} {kind}")
    layout = {**_LAYOUTS[kind], "delivery": delivery, "leadership": "solo", "parking": "skip"}
    cuts, passed, native = {topic: [] for topic in topics}, [], []
    for part, some_parked in ((count - count // 10, False), (count // 10, kind != "mapped")):
        insert(dsn, drawn(topics, part, kind, dice, parked=some_parked, keys=_KEYS if is_barrier else 0), kind)
        for name in ("python", "native"):
            use(name)
            config = harvest_config(dsn, bootstrap_servers, f"{group_id}.{name}", subscription=name, **layout)
            before = handed_over["records"]
            passed.append(Harvest(config).drain(600).records)
            native.append(handed_over["records"] - before)
            for topic in topics:
                cuts[topic].append(ends(bootstrap_servers, topic))
    stamps = layout.get("record_header", True)
    has = {"has_ids": delivery == "sequenced", "has_stamps": stamps, "by_key": is_barrier}
    compared = 0
    for topic in topics:
        for number, found in runs(bootstrap_servers, topic, cuts[topic], **has).items():
            for first, second in (found[:2], found[2:]):
                unequal = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
                assert (unequal, len(first)) == (None, len(second)), (topic, number)
                compared += len(first)
    with psycopg.connect(dsn) as connection:
        parked, also = (connection.execute(_PARKED, (name,)).fetchall() for name in ("python", "native"))
    assert parked == also
    assert compared + len(parked) == count
    assert (passed[0], passed[2]) == (passed[1], passed[3])
    sendable, also_sendable = count - count // 10, count // 10 if kind == "mapped" else 0
    if is_barrier:  # those that wait in small numbers are made, and go the way of Python
        assert native[0] == native[2] == 0
        assert native[1] > sendable / 2
        assert native[3] >= also_sendable / 2
    else:
        assert native[:3] == [0, sendable, 0]
    if kind == "mapped":
        assert parked == []
        assert is_barrier or native[3] == also_sendable
    else:
        assert len({reason for _, _, _, reason, _ in parked}) >= 4, "every shape that cannot be sent"
    logging.getLogger(__name__).info("%d compared, %d parked, %.1f s", compared, len(parked), time.monotonic() - began)
