"""Brokers that answer, and begin no transaction all the same: said at the start."""

import pytest
from support.outbox import harvest_config

from harvest_lib.errors import KafkaUnavailable
from harvest_lib.harvester.transactions import prepare_transactions
from harvest_lib.local_stack.kafka import KafkaCluster

pytestmark = pytest.mark.full


class TooFewBrokers(KafkaCluster):
    """One broker, that is to keep what it notes of transactions on three."""

    def _configuration(self, number):
        return super()._configuration(number) + "transaction.state.log.replication.factor=3\n"


@pytest.fixture(scope="module")
def servers(parts, tmp_path_factory):
    cluster = TooFewBrokers(tmp_path_factory.mktemp("kafka"), parts=parts)
    try:
        cluster.start()
        yield cluster.bootstrap_servers
    finally:
        cluster.kill()


def test_brokers_that_begin_no_transaction_are_not_said_to_be_away(dsn, servers, unique):
    config = harvest_config(dsn, servers, unique("group"), delivery="transactional")
    with pytest.raises(KafkaUnavailable, match="has begun no transaction") as refused:
        prepare_transactions(config)
    assert "transaction.state.log.replication.factor" in refused.value.next_step
    assert "`delivery: barrier`" in refused.value.next_step
