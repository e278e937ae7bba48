"""Each fault fires exactly the alerts that it should, in a real Prometheus, and they end after it."""

import logging
import time

import pytest
from support.machine import require

from harvest_lib.local_stack.state import default_state, make_folder
from infra.chaos.alert_matrix import run, scaled_rules_of_run
from infra.chaos.alerts import BROKERS
from infra.chaos.expected_alerts import CASES, Case
from infra.chaos.faults import missing
from infra.chaos.namespaces import mounts_lacking, networks_lacking
from infra.chaos.prometheus import prometheus_lacking

pytestmark = pytest.mark.full

ALL_AWAY = [
    Case(fault="broker-frozen", minutes=5, alerts=frozenset({"HarvestNoProgress"})),
    Case(fault="postgres-killed", alerts=frozenset({"HarvestPostgresAway"})),
    Case(fault="pool-killed", minutes=4, alerts=frozenset({"HarvestDown"})),
]
"""With one broker, which is all of Kafka."""


def injected(cases, brokers, say=print):
    """Inject the faults of the cases; return what was wrong with their alerts, and how many there were."""
    require(prometheus_lacking(), "prometheus")
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # writers' connections are cut on purpose
    folder = make_folder(default_state() / "chaos" / f"test-alerts-{brokers}-{time.strftime('%H%M%S')}").resolve()
    found = list(run(cases, brokers=brokers, folder=folder, parts=default_state(), say=say))
    rules = scaled_rules_of_run()[1]
    return [sentence for each in found for sentence in each.wrong(rules)], sum(len(each.fired) for each in found)


@pytest.mark.timeout(240)
def test_kafka_postgres_and_the_pool_away_fire_their_alerts():
    assert injected(ALL_AWAY, 1) == ([], 3)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_fault_fires_what_it_should_and_nothing_else():
    require(mounts_lacking(), "mount")
    require(networks_lacking(), "ip")
    cases = [case for case in CASES if case.fault not in missing(BROKERS)]
    wrong, fired = injected(cases, BROKERS)
    assert wrong == []
    assert fired >= sum(len(case.alerts) for case in cases)
