"""The older servers: the same harvest on Postgres 16 and Kafka 3.9.1."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.least import LIMITED, limiting
from support.outbox import Outbox, harvest_config, read_topic, steps_back
from support.secured import MARK, MARK_BATCHES, SNAPSHOT, Secured
from support.waiting import eventually

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.local_stack import Stack

pytestmark = pytest.mark.full


@pytest.mark.timeout(600)  # brings the older Kafka at the first time
def test_a_harvest_on_postgres_16_and_kafka_3_9(tmp_path, parts):
    with Stack(tmp_path, postgres="16", kafka="3.9.1", parts=parts, acls=LIMITED) as stack, limiting(stack):
        admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
        admin.create_topics([NewTopic("orders", 4)])["orders"].result(60)
        outbox = Outbox(stack.dsn, "orders")
        assert outbox.connection.info.server_version // 10_000 == 16
        outbox.fill(2_000, keys=50)
        assert (
            Harvest(harvest_config(stack.dsn, stack.bootstrap_servers, "pool", leadership="neli")).drain(60).records
            == 2_000
        )
        outbox.close()
        delivered = read_topic(stack.bootstrap_servers, "orders")
    assert sorted(record.outbox_id for record in delivered) == list(range(1, 2_001))
    assert steps_back(delivered) == 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_is_printed_is_enough_for_the_older_servers_too(tmp_path, parts):
    """TLS everywhere, and exactly the grants that `harvest grants` prints."""
    with Stack(tmp_path, postgres="16", kafka="3.9.1", parts=parts, secure=True) as stack:
        for name, way in {"mark": MARK, "snapshot": SNAPSHOT, "mark_batches": MARK_BATCHES}.items():
            secured = Secured(stack, name)
            assert secured.owner.info.server_version // 10_000 == 16
            secured.prepare(way)
            secured.write(30)
            assert Harvest(secured.config(**way)).drain(60).records == 30
            eventually(lambda made=secured: made.arrived(30), "committed")
            secured.close()
