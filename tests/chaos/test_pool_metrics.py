"""The numbers of a pool of three over failovers: nothing goes back, and nothing is counted twice."""

import signal
import threading

import pytest
from support.native import Native
from support.outbox import read_topic
from support.pool import HARVEST, Pool
from support.scraping import scrape, series
from support.waiting import eventually

from harvest_lib.telemetry import catalogue

pytestmark = pytest.mark.full

WRITE = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT %s, 'key-' || g %% 20, g::text FROM generate_series(1, %s) g
"""
GROWING = [each.name for each in vars(catalogue).values() if getattr(each, "kind", "") == "counter"]


class Watcher:
    """Scrapes each process without a pause, on a thread for each, and keeps what went back."""

    def __init__(self):
        self.last = {}
        self.scrapes = 0
        self.went_back = []
        self.failures = []
        self._over = threading.Event()
        self._threads = []

    def watch(self, member):
        thread = threading.Thread(target=self._watch, args=(member, address_of(member)), daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self):
        self._over.set()
        for each in self._threads:
            each.join(60)

    def delivered(self):
        """Return how many records each process said last that it had delivered."""
        return {member: found["harvest_delivered_records_total", ("0",)] for member, found in self.last.items()}

    def _watch(self, member, address):
        before = {}
        while not self._over.wait(0.05):
            try:
                found = scrape(address)
            except (OSError, AssertionError) as error:
                if member.alive and not isinstance(error, OSError):
                    self.failures.append(error)
                continue
            for name in GROWING:
                for labels, value in series(before, name).items():
                    if (name, labels) in found and found[name, labels] < value:
                        self.went_back.append((name, labels, value, found[name, labels]))
            self.last[member] = before = found
            self.scrapes += 1


def address_of(member):
    def reported():
        return next((each["address"] for each in member.events() if each["event"] == "telemetry_served"), None)

    return eventually(reported, "it listens")


@pytest.fixture
def watcher():
    made = Watcher()
    yield made
    made.stop()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_over_a_failover_nothing_goes_back_and_nothing_is_counted_twice(
    tmp_path, dsn, bootstrap_servers, group_id, make_topic, watcher, how
):
    topic, outbox = make_topic(partitions=4), Native(dsn, size=1_000_000)
    written, steps = 0, 200
    with Pool(tmp_path, dsn=dsn, servers=bootstrap_servers, group=group_id, delivery="transactional") as pool:
        for _ in range(3):
            watcher.watch(pool.add([*HARVEST, "--listen", "127.0.0.1:0"]))
        pool.await_started()
        for _ in range(2):
            leader = eventually(pool.leader, "somebody leads")
            for _ in range(5):
                outbox.connection.execute(WRITE, (topic, steps))
                written += steps
            others = [each for each in pool.members if each is not leader and each.alive]
            leader.signal(how)
            leader.process.wait(60)
            eventually(lambda others=others: any(each.leads for each in others), "a successor")
        outbox.connection.execute(WRITE, (topic, steps))
        written += steps
        last = eventually(pool.leader, "somebody leads")

        def settled():
            found = watcher.last.get(last, {})
            return series(found, "harvest_subscription_delivered_records_total").get(("0", "default")) == written

        eventually(settled, "the last one has seen that all are delivered")
        watcher.stop()
    found = watcher.last[last]
    counted = watcher.delivered()
    assert len(read_topic(bootstrap_servers, topic, isolation="read_committed")) == written
    assert watcher.went_back == []
    assert watcher.failures == []
    assert watcher.scrapes > 30
    # Records delivered between a process's last answer and its end are counted nowhere: never more than there are.
    assert sum(counted.values()) <= written
    assert counted[last] >= steps
    assert found["harvest_subscription_epoch", ("0", "default")] >= 3
    assert found["harvest_leader", ("0",)] == 1
    assert found["harvest_backlog_records", ()] == 0
    assert found["harvest_possible_duplicate_records_total", ("0",)] == 0
