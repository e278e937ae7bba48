"""Leaders of a shard that Postgres remembers, by which its checkpoints in Kafka are judged."""

import uuid

import psycopg
import pytest

from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source.filters import Subscription

pytestmark = pytest.mark.gate

OUTBOX = OutboxTable.parse("outbox")


@pytest.fixture
def lead(dsn):
    """Have another leader lead, after one that has saved; returns its checkpoints."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OUTBOX).create(connection)
    made = []

    def one():
        table = CheckpointTable(dsn, OUTBOX.subscriptions.identifier, Subscription(), outbox=OUTBOX.identifier)
        made.append(table)
        found = table.lead(uuid.uuid4())
        if found.number == 0:
            assert table.save(OutboxCheckpoint(generation=found.generation, number=1, position={"ids": ""}))
        return table

    one()
    yield one
    for each in made:
        each.close()


def test_each_leader_since_the_last_that_saved_is_remembered(lead):
    leaders = [lead() for _ in range(3)]
    assert [len(each.authors.leaders) for each in leaders] == [2, 3, 4]


def test_of_very_many_leaders_the_first_and_the_last_are_remembered(lead, monkeypatch):
    monkeypatch.setattr("harvest_lib.checkpoints.authors._MOST_LEADERS", 4)
    last = [lead() for _ in range(6)][-1]
    epochs = sorted(map(int, last.authors.leaders))
    assert (epochs[:2], epochs[2:]) == ([last.epoch - 6, last.epoch - 5], [last.epoch - 1, last.epoch])
