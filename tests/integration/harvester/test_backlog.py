"""The backlog is one number, whoever reports it: status, metrics, Dagster, the progress line, a subscription's lag."""

import logging
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.types.json import Jsonb
from support.native import Native
from support.outbox import Outbox, harvest_config
from support.parking import Parking
from support.scraping import scrape_until

from dagster_harvest.daemon import _Daemon
from dagster_harvest.settings import OutboxSettings
from harvest_lib.cli.status import StatusReadings
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.status import SAMPLED, StatusReader
from harvest_lib.harvester.telemetry import HarvestTelemetry
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.subscriptions import backlog
from harvest_lib.telemetry.server import Listener

pytestmark = pytest.mark.gate(cases=2)

INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)
SELECT now() - make_interval(hours => %s), 't', 'key-' || g, '{}', '{}' FROM generate_series(1, %s) g
"""


@pytest.fixture(params=["goharvest", "native, of nobody", "native, in shards"])
def table(request, dsn):
    made = Outbox(dsn, "t") if request.param == "goharvest" else Native(dsn, size=1_000_000)
    if request.param == "native, in shards":
        for shard in range(2):
            made.subscribe(made.snapshot(), name="default", shard=shard)
        made.connection.execute("UPDATE outbox_subscriptions SET shards = 2")
    yield made
    made.connection.close()


@pytest.fixture
def reported(table, dsn, bootstrap_servers, group_id):
    """Return what each that reports the backlog makes of it now: records, hours of the oldest, whether estimated."""
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo")
    resource = SimpleNamespace(config=lambda: config, connect=lambda: psycopg.connect(dsn, autocommit=True))
    settings = OutboxSettings(name="shop", topics=["t"])
    context = SimpleNamespace(resources=SimpleNamespace(**{settings.resource_key: resource}), log=logging.getLogger())

    def read():
        telemetry = HarvestTelemetry(Harvest(config))
        listener = Listener("127.0.0.1:0", telemetry)
        found = scrape_until(listener.address, lambda found: ("harvest_backlog_records", ()) in found, "asked")
        listener.stop()
        telemetry.stop()
        names = ("harvest_backlog_records", "harvest_backlog_age_seconds", "harvest_backlog_is_estimate")
        records, age, is_estimate = (found[name, ()] for name in names)
        told = {"metrics": (records, age // 3_600, bool(is_estimate))}
        with resource.connect() as connection:
            status = StatusReadings(connection, OutboxTable.parse("outbox"), config).next()
            told["status"] = (status.backlog_records, status.oldest_age_seconds // 3_600, status.backlog_is_estimate)
            reader = StatusReader(connection, config)
            told["progress"] = (*told["status"][:1], reader.oldest_age_seconds() // 3_600, *told["status"][2:])
            if shards := reader.shards():
                total = backlog.total([each for _, each in reader.read(shards)])
                told["subscriptions"] = (total.records, total.age_seconds // 3_600, total.is_estimate)
        waiting = _Daemon(context, settings)._progress().waiting
        told["dagster"] = (waiting.records, waiting.age_seconds // 3_600, waiting.is_estimate)
        return told

    return read


def test_all_report_one_backlog(table, reported, dsn):
    assert set(reported().values()) == {(0, 0, False)}
    table.connection.execute(INSERT, (2, 3))
    table.connection.execute(INSERT, (5, 1))
    assert set(reported().values()) == {(4, 5, False)}, "the oldest is not the first"
    with psycopg.connect(dsn) as late:
        late.execute(INSERT, (9, 2))
        assert set(reported().values()) == {(4, 5, False)}, "what is not committed does not wait"
    assert set(reported().values()) == {(6, 9, False)}


@pytest.mark.parametrize("table", ["goharvest"], indirect=True)
def test_parked_records_do_not_wait(table, reported):
    table.connection.execute(INSERT, (2, 4))
    parking = Parking(table.connection, ParkedRecords(OutboxTable.parse("outbox")))
    parking.move(1)
    parking.move(2, held=True)
    assert set(reported().values()) == {(2, 2, False)}


@pytest.mark.parametrize("table", ["native, in shards"], indirect=True)
def test_parked_ids_do_not_wait(table, reported):
    table.connection.execute(INSERT, (2, 3))
    table.connection.execute(
        "INSERT INTO outbox_parked_ids (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id) "
        "SELECT 'default', 0, id, 't', kafka_key, 'missing', false, transaction_id FROM outbox"
    )
    position = {"prev": table.snapshot()}
    passed = {"generation": 0, "number": 1, "position": position, "delivered": 3, "kept_in": "postgres"}
    table.connection.execute("UPDATE outbox_subscriptions SET checkpoint = %s", (Jsonb(passed),))
    table.connection.execute(INSERT, (1, 2))
    assert set(reported().values()) == {(2, 1, False)}


@pytest.mark.full
def test_a_long_backlog_is_estimated_and_marked_as_such(table, reported):
    table.connection.execute(INSERT, (2, 4 * SAMPLED))
    told = reported()
    sampled = told.pop("metrics")
    assert sampled[1:] == (2, True)
    assert sampled[0] == pytest.approx(4 * SAMPLED, rel=0.01)
    assert set(told.values()) == {(4 * SAMPLED, 2, False)}
    table.connection.execute(INSERT, (2, backlog.MOST + SAMPLED))
    ((records, *more),) = set(reported().values())
    assert more == [2, True]
    assert records == pytest.approx(backlog.MOST + 5 * SAMPLED, rel=0.01)
