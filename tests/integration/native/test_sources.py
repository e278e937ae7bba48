"""Sources whose rows are handed over natively: they return the same rows as in Python, in the same order."""

import psycopg
import pytest
from support.outbox import harvest_config, read_topic

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.native import NativeRows, implementation
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.source import Selection, TransactionIdSource

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(
        implementation().library is None, reason=f"there is no native library here: {implementation().reason}"
    ),
]

_INSERT = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s) RETURNING id"


@pytest.fixture
def interleaved(dsn):
    """An outbox in which ids do not ascend by transaction: return the function that fills it, and what it makes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox")).create(connection)

    def fill(topic, count):
        ids = []
        with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
            for number in range(count):
                for connection, into in ((first, 0), (second, 1)):
                    (made,) = connection.execute(_INSERT, (topic, f"k{into}", f"{number}")).fetchone()
                    ids.append((into, made))
        return [made for _, made in sorted(ids)]

    return fill


@pytest.mark.parametrize("limit", [7, 100])
def test_rows_by_transaction_come_natively_in_their_order(dsn, interleaved, limit):
    expected = interleaved("t", 20)
    assert expected != sorted(expected)
    source = TransactionIdSource(dsn, Selection(table=OutboxTable.parse("outbox").identifier))
    try:
        source.open(None)
        found = []
        while page := source.read(limit):
            assert isinstance(page.rows, NativeRows)
            assert page.more is (len(page.rows) == limit)
            found += page.rows
            source.open(page.position)
    finally:
        source.close()
    assert [row[0] for row in found] == expected
    assert {row[1] for row in found} == {"t"}


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("delivery", ["barrier", "pipelined", "transactional", "sequenced"])
def test_rows_by_transaction_are_delivered_in_their_order(
    dsn, bootstrap_servers, group_id, make_topic, interleaved, handed_over, delivery
):
    topic = make_topic()
    expected = interleaved(topic, 300)
    config = harvest_config(
        dsn, bootstrap_servers, group_id, leadership="solo", delivery=delivery, source="transaction_id"
    )
    assert Harvest(config).drain(120).records == len(expected)
    found = [each.outbox_id for each in read_topic(bootstrap_servers, topic) if each.outbox_id is not None]
    if delivery == "barrier":  # which makes rows of what it defers
        assert sorted(found) == sorted(expected)
        assert 0 < handed_over["records"] < len(expected)
    else:
        assert found == expected
        assert handed_over["records"] == len(expected)
