"""Brokers that answer, and begin no transaction all the same: said at the start."""

import pytest
from support.outbox import harvest_config
from support.servers import own_cluster

from harvest_lib.errors import KafkaError, KafkaUnavailable
from harvest_lib.harvester.assembly.transactions import prepare_transactions
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
    with own_cluster(request.param(tmp_path, parts=parts)) as cluster:
        yield cluster.bootstrap_servers


@pytest.mark.parametrize(
    ("servers", "error", "says", "setting"),
    [
        (ShortTransactions, KafkaError, "permits no transaction of 15 s", "transaction.max.timeout.ms"),
        (TooFewBrokers, KafkaUnavailable, "has begun no transaction", "transaction.state.log.replication.factor"),
    ],
    ids=["too long", "too few brokers"],
    indirect=["servers"],
)
def test_brokers_that_begin_no_transaction_are_told_what_to_set(dsn, servers, unique, error, says, setting):
    config = harvest_config(dsn, servers, unique("group"), delivery="transactional")
    with pytest.raises(error, match=says) as refused:
        prepare_transactions(config)
    assert setting in refused.value.next_step
    assert "`delivery: barrier`" in refused.value.next_step
