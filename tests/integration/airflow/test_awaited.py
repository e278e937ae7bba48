"""What a sensor of Airflow waits for, on the real Postgres: later records do not prolong it, parked ones do."""

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from psycopg.conninfo import make_conninfo
from support.outbox import harvest_config
from support.subscribed import Subscribed

from harvest_lib.airflow.awaited import AwaitedDelivery, AwaitedLeader
from harvest_lib.errors import DatabaseAccessDenied
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox.parking import ParkedRecords

pytestmark = pytest.mark.gate


@pytest.fixture
def shop(dsn, make_topic, bootstrap_servers, group_id):
    made = Subscribed(dsn, make_topic(partitions=1, **{"max.message.bytes": 3_000}), bootstrap_servers, group_id)
    yield made
    made.close()


@pytest.fixture
def config(shop):
    return harvest_config(shop.dsn, shop.servers, shop.group, source="snapshot", delivery="transactional")


def test_records_that_come_later_do_not_prolong_the_wait(shop, config):
    shop.write("first")
    from_start, empty = AwaitedDelivery(until="start"), AwaitedDelivery(until="empty")
    assert [each.read(config).is_done for each in (from_start, empty)] == [False, False]
    shop.write("second")  # so that the first reading's records are not the last
    Harvest(config).drain(60)
    shop.write("later")
    assert [each.read(config).is_done for each in (from_start, empty)] == [True, False]
    Harvest(config).drain(60)
    assert empty.read(config).is_done


def test_a_time_is_waited_for_by_the_clock_of_postgres(shop, config):
    Harvest(config).drain(60)
    now = datetime.now(UTC)
    assert AwaitedDelivery(until=(now - timedelta(hours=1)).isoformat()).read(config).is_done
    assert not AwaitedDelivery(until=(now + timedelta(hours=1)).replace(tzinfo=None).isoformat()).read(config).is_done


def test_a_leader_is_waited_for_until_it_has_delivered_what_was_there(shop, config):
    shop.write("first")
    began = shop.connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()[0]
    leader = AwaitedLeader(began=began)
    assert not leader.read(config).is_done
    Harvest(config).drain(60)
    shop.write("later")
    found = leader.read(config)
    assert (found.is_done, found.waiting.records) == (True, 1)


def test_a_slow_reading_does_not_make_an_old_record_seem_new(shop, config, monkeypatch):
    shop.write("first")
    began = shop.connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()[0]
    read = StatusReader.waiting

    def read_slowly(self):
        found = read(self)
        shop.connection.execute("SELECT pg_sleep(0.3)")
        return found

    monkeypatch.setattr(StatusReader, "waiting", read_slowly)
    assert not AwaitedLeader(began=began).read(config).is_done


def test_a_parked_record_is_not_delivered(shop, config):
    Harvest(config).drain(60)
    shop.connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
        " SELECT %s, 'large', string_agg(md5(g::text), '') FROM generate_series(1, 300) g",
        (shop.topic,),
    )
    Harvest(config).drain(60)
    found = AwaitedDelivery(until="start").read(config)
    assert (found.is_done, found.waiting.records) == (False, 0)
    assert AwaitedDelivery(until="empty").read(config).is_done


def test_where_the_parked_records_may_not_be_read_a_time_is_refused(shop, config, monkeypatch):
    monkeypatch.setattr("harvest_lib.harvester.watermark._READABLE", "SELECT false, %(side)s::text IS NULL")
    Harvest(config).drain(60)
    with pytest.raises(DatabaseAccessDenied, match=r"may not read .*outbox_parked"):
        AwaitedDelivery(until="start").read(config)
    assert AwaitedDelivery(until="empty").read(config).is_done


def test_a_role_without_a_right_to_the_table_of_marking_waits_for_a_time(shop, config, unique):
    """`outbox_parked` is there, and the grants of a harvester that only reads do not name it."""
    Harvest(config).drain(60)
    role = unique("reader")[:60]
    ParkedRecords(shop.name).create(shop.connection)
    with a_role(shop.connection, role):
        for table in ("outbox", "outbox_subscriptions", "outbox_parked_ids"):
            shop.connection.execute(f"GRANT SELECT ON {table} TO {role}")
        dsn = make_conninfo(shop.dsn, user=role, password="p")
        own = harvest_config(dsn, shop.servers, shop.group, source="snapshot", delivery="transactional")
        assert AwaitedDelivery(until="start").read(own).is_done


@contextmanager
def a_role(connection, name):
    connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'p'")
    try:
        yield
    finally:
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")
