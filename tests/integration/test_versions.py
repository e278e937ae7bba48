"""The older servers: the same harvest on Postgres 16 and Kafka 3.9.1."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.outbox import Outbox, harvest_config, read_topic, steps_back

from harvest_lib.harvester import Harvest
from infra.local import Stack


@pytest.mark.timeout(600)  # brings the older Kafka at the first time
def test_a_harvest_on_postgres_16_and_kafka_3_9(tmp_path, parts):
    with Stack(tmp_path, postgres="16", kafka="3.9.1", parts=parts) as stack:
        admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
        admin.create_topics([NewTopic("orders", 4)])["orders"].result(30)
        outbox = Outbox(stack.dsn, "orders")
        assert outbox.connection.info.server_version // 10_000 == 16
        outbox.fill(2_000, keys=50)
        assert Harvest(harvest_config(stack.dsn, stack.bootstrap_servers, "pool")).drain(60).records == 2_000
        outbox.close()
        delivered = read_topic(stack.bootstrap_servers, "orders")
    assert sorted(record.outbox_id for record in delivered) == list(range(1, 2_001))
    assert steps_back(delivered) == 0
