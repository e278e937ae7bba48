"""`check` compares the row of each shard with its checkpoint in Kafka, not of the first one alone."""

import pytest
from psycopg.types.json import Jsonb
from support.outbox import harvest_config

from harvest_lib.harvester import preflight

pytestmark = pytest.mark.gate

SHARDS = 3


@pytest.mark.full
def test_check_finds_each_shard_whose_row_was_put_back(outbox):
    settings = {"leadership": "solo", "source": "snapshot", "delivery": "transactional", "shards": SHARDS}

    def deliver():
        outbox.write(*"12345678")
        outbox.harvest(**settings).drain(60)
        query = "SELECT shard, checkpoint FROM outbox_subscriptions ORDER BY shard"
        return dict(outbox.connection.execute(query).fetchall())

    def causes():
        config = harvest_config(outbox.dsn, outbox.servers, outbox.group, **settings)
        return [each.cause for each in preflight.inspect(config).errors]

    def put(shard, checkpoint):
        statement = "UPDATE outbox_subscriptions SET checkpoint = %s WHERE shard = %s"
        outbox.connection.execute(statement, (Jsonb(checkpoint), shard))

    before, now = deliver(), deliver()
    assert causes() == []
    for shard in range(SHARDS):
        put(shard, before[shard])
        (found,) = causes()
        assert "was put back to an earlier time" in found
        assert f"default/{shard}" in found
        put(shard, now[shard])
