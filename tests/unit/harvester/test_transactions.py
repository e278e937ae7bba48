"""A trial of a transaction while another process tries one."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.assembly.transactions import try_transactions

pytestmark = pytest.mark.quick


class Producer:
    """One that another has fenced meanwhile."""

    def init_transactions(self, _seconds):
        raise KafkaException(KafkaError(KafkaError._FENCED))

    def close(self):
        pass


def test_another_process_that_tries_it_out_is_no_trouble():
    try_transactions(HarvestConfig(leader_group_id="g"), lambda _: Producer())


def test_it_asks_for_the_time_that_delivery_asks_for_whatever_is_configured():
    given = []
    config = HarvestConfig(leader_group_id="g", producer_kafka_config={"transaction.timeout.ms": 3_600_000})
    try_transactions(config, lambda settings: given.append(settings["transaction.timeout.ms"]) or Producer())
    assert given == [15_000]
