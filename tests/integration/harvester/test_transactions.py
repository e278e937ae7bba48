"""Brokers that answer, and begin no transaction all the same: said at the start."""

import pytest
from support.outbox import harvest_config

from harvest_lib.errors import KafkaError, KafkaUnavailable
from harvest_lib.harvester.transactions import prepare_transactions
from harvest_lib.local_stack.kafka import KafkaCluster

pytestmark = pytest.mark.full


class TooFewBrokers(KafkaCluster):
    """One broker, that is to keep what it notes of transactions on three."""

    def _configuration(self, number):
        return super()._configuration(number) + "transaction.state.log.replication.factor=3\n"


class ShortTransactions(KafkaCluster):
    """One broker, that permits transactions of less than ours."""

    def _configuration(self, number):
        return super()._configuration(number) + "transaction.max.timeout.ms=10000\n"


@pytest.fixture
def servers(request, parts, tmp_path):
    cluster = request.param(tmp_path, parts=parts)
    try:
        cluster.start()
        yield cluster.bootstrap_servers
    finally:
        cluster.kill()


@pytest.mark.parametrize("servers", [ShortTransactions], indirect=True)
def test_brokers_that_permit_no_transaction_of_our_length_are_told_what_to_permit(dsn, servers, unique):
    config = harvest_config(dsn, servers, unique("group"), delivery="transactional")
    with pytest.raises(KafkaError, match="permits no transaction of 15 s") as refused:
        prepare_transactions(config)
    assert "transaction.max.timeout.ms" in refused.value.next_step


@pytest.mark.parametrize("servers", [TooFewBrokers], indirect=True)
def test_brokers_that_begin_no_transaction_are_not_said_to_be_away(dsn, servers, unique):
    config = harvest_config(dsn, servers, unique("group"), delivery="transactional")
    with pytest.raises(KafkaUnavailable, match="has begun no transaction") as refused:
        prepare_transactions(config)
    assert "transaction.state.log.replication.factor" in refused.value.next_step
    assert "`delivery: barrier`" in refused.value.next_step
