"""Servers that go away while the harvester runs: it waits, loses nothing, reorders nothing, and goes on by itself."""

import os
import signal

import pytest
from confluent_kafka.admin import AdminClient
from support.databases import Databases
from support.outbox import harvest_config, read_topic, steps_back
from support.waiting import eventually

from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.outbox.parking import ParkedRecords

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def stack(breakable_stack):
    return breakable_stack


@pytest.fixture(scope="module")
def databases(stack):
    return Databases(lambda: stack.dsn)


@pytest.fixture(scope="module")
def bootstrap_servers(stack):
    return stack.bootstrap_servers


@pytest.fixture(scope="module")
def admin(bootstrap_servers):
    return AdminClient({"bootstrap.servers": bootstrap_servers})


@pytest.fixture
def harvest(outbox, bootstrap_servers, group_id):
    config = harvest_config(
        outbox.dsn,
        bootstrap_servers,
        group_id,
        leadership="neli",
    )
    return Harvest(config)


def check_delivered(outbox, bootstrap_servers, records):
    assert outbox.count() == 0
    assert ParkedRecords(outbox.name).counts(outbox.connection).parked == 0
    delivered = read_topic(bootstrap_servers, outbox.topic)
    assert {record.outbox_id for record in delivered} == set(range(1, records + 1))
    assert steps_back(delivered) == 0
    repeats = {}
    for record in delivered:
        repeats.setdefault(record.outbox_id, []).append(record.leader_id)
    assert all(len(leaders) == len(set(leaders)) for leaders in repeats.values()), "each repeat is another leader's"


def await_turns(harvest, number=10):
    """Wait until the harvester has looked around so often."""
    turns = set()
    eventually(lambda: turns.add(harvest._terms.turned_at) or len(turns) > number, "it goes round")


def reconnect(outbox):
    """The test's own connection died with the server, too."""
    outbox.connection.close()
    outbox.__post_init__()


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_postgres_goes_and_comes_back(outbox, harvest, stack, bootstrap_servers, how):
    records = 8_000
    outbox.fill(records, keys=200)
    with harvest:
        eventually(lambda: harvest.delivered_records > 300, "busy")
        if how == "killed":
            stack.postgres.kill()
            stack.postgres.start()
        else:
            backend = outbox.connection.execute(
                "SELECT pid FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'harvest mark'"
            ).fetchone()[0]
            os.kill(backend, signal.SIGSTOP)
            try:
                await_turns(harvest)
                assert harvest.state is State.RUNNING
            finally:
                os.kill(backend, signal.SIGCONT)
        reconnect(outbox)
        eventually(lambda: outbox.count() == 0, "the backlog is empty")
        assert harvest.state is State.RUNNING
    check_delivered(outbox, bootstrap_servers, records)


def test_a_connection_is_cut_again_and_again(outbox, harvest, bootstrap_servers):
    """Mark, purge and reset of unknown outcome: a new leader id, and mark again."""
    records = 6_000
    outbox.fill(records, keys=100)
    with harvest:
        for _ in range(8):
            before = harvest.delivered_records
            eventually(lambda before=before: harvest.delivered_records > before or outbox.count() == 0, "progress")
            outbox.connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        eventually(lambda: outbox.count() == 0, "the backlog is empty")
    check_delivered(outbox, bootstrap_servers, records)


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_kafka_goes_and_comes_back(outbox, harvest, stack, bootstrap_servers, how):
    records = 8_000
    outbox.fill(records, keys=200)
    with harvest:
        eventually(lambda: harvest.delivered_records > 300, "busy")
        first = harvest.leader_id
        if how == "killed":
            stack.kafka.kill()
            stack.kafka.start()
        else:
            stack.kafka.suspend()
            eventually(lambda: not harvest.is_leader, "fenced: it can prove nothing any more")
            stack.kafka.resume()
        eventually(lambda: outbox.count() == 0, "the backlog is empty", seconds=90)
        assert harvest.state is State.RUNNING
        assert harvest.leader_id != first
    check_delivered(outbox, bootstrap_servers, records)


def test_a_stop_while_kafka_is_away_ends_and_loses_nothing(outbox, harvest, stack, bootstrap_servers):
    """Records in flight stay in the table, or are in Kafka twice."""
    records = 8_000
    outbox.fill(records, keys=200)
    harvest.start()
    eventually(lambda: harvest.delivered_records > 300, "busy")
    stack.kafka.suspend()
    try:
        harvest.stop()
        assert harvest.await_stopped(60)
    finally:
        stack.kafka.resume()
    assert outbox.leaders() == set()
    config = harvest_config(outbox.dsn, bootstrap_servers, f"{harvest._config.leader_group_id}-next", leadership="solo")
    Harvest(config).drain(60)
    check_delivered(outbox, bootstrap_servers, records)
