"""Partitions that are added to a topic split its keys: said when it is seen, also by who was not running then."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka.admin import NewPartitions
from support.outbox import harvest_config
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.delivery.partitioners import partition_of
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.housekeeping import added_partitions
from harvest_lib.harvester.housekeeping.added_partitions import Added, added_of
from harvest_lib.harvester.status import StatusReader
from harvest_lib.harvester.telemetry import HarvestTelemetry, _noticed
from harvest_lib.harvester.telemetry.outbox_sample import MOST_TOPICS
from harvest_lib.postgres.database import connect
from harvest_lib.telemetry.catalogue import PARTITIONS_ADDED

pytestmark = pytest.mark.gate

KEYS = [f"customer-{number}" for number in range(20)]


@pytest.fixture
def native(dsn, make_topic, bootstrap_servers, group_id):
    made = Subscribed(dsn, make_topic(partitions=2), bootstrap_servers, group_id)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(added_partitions, "_EVERY_SECONDS", 0.3)
    monkeypatch.setattr(added_partitions, "_FIRST_SECONDS", 0.3)


def add(admin, topic, number):
    for future in admin.create_partitions([NewPartitions(topic, number)]).values():
        future.result(60)


def records(caplog):
    return [each for each in caplog.records if each.getMessage() == "partitions_added"]


def said(caplog):
    return [(each.topic, each.before, each.after) for each in records(caplog)]


def measured(telemetry):
    """Return the metric: when partitions were added, by topic."""
    return {
        topic: at
        for metric, found in telemetry.readings()
        if metric is PARTITIONS_ADDED
        for (topic,), at in found.items()
    }


def noted(native):
    known = native.connection.execute("SELECT leader -> 'topics' FROM outbox_subscriptions").fetchone()
    return (known[0] or {}).get(native.topic, {}) if known else {}


def notes(native, config):
    with connect(native.dsn) as connection:
        return [each for each in StatusReader(connection, config).leaders().notes if "partitions" in each]


def test_partitions_that_are_added_while_it_runs(native, admin, caplog):
    config = harvest_config(native.dsn, native.servers, native.group, leadership="solo")
    began = int(time.time())
    native.fill(3)
    with Harvest(config) as harvest:
        eventually(lambda: harvest.delivered_records == 3, "delivered")
        eventually(lambda: noted(native).get("partitions") == 2, "known")
        assert notes(native, config) == []
        add(admin, native.topic, 5)
        eventually(lambda: said(caplog) == [(native.topic, 2, 5)], "said")
        eventually(lambda: noted(native).get("noticed_at"), "written down")
    (note,) = notes(native, config)
    (record,) = records(caplog)
    assert native.topic in note
    assert "2 before and 5 now" in note
    assert "80% of its keys" in note
    assert record.moved_share == 0.8
    assert noted(native)["noticed_at"] == record.noticed_at
    assert record.noticed_at in note
    assert began <= datetime.fromisoformat(record.noticed_at).timestamp() <= time.time()


def test_the_metric_is_there_for_whoever_did_not_notice(native, admin, harvest):
    """A process that leads later, one that stands by, and the command that says of a key where it went."""
    config = harvest_config(native.dsn, native.servers, native.group, leadership="solo")
    native.fill(3)
    with Harvest(config):
        eventually(lambda: noted(native).get("partitions") == 2, "known")
        with HarvestTelemetry(Harvest(config)) as telemetry:
            assert measured(telemetry) == {}
        add(admin, native.topic, 5)
        noticed_at = eventually(lambda: noted(native).get("noticed_at"), "written down")
    with HarvestTelemetry(Harvest(config)) as telemetry:
        found = eventually(lambda: measured(telemetry), "asked")
    assert found == {native.topic: datetime.fromisoformat(noticed_at).timestamp()}
    servers = {"HARVEST_DSN": native.dsn, "HARVEST_BOOTSTRAP_SERVERS": native.servers}
    done = harvest("partition", native.topic, *KEYS, **servers, HARVEST_LEADER_GROUP_ID=native.group)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for key, line in zip(KEYS, lines, strict=True):
        now, before = partition_of(key.encode(), 5), partition_of(key.encode(), 2)
        moved = "moved" if now != before else "did not move"
        assert line == f"{key}: partition {now} of 5, {before} of 2 before: {moved}"
    assert any(line.endswith("did not move") for line in lines)
    assert any(line.endswith(": moved") for line in lines)


def test_partitions_that_were_added_while_nobody_ran(native, admin, caplog):
    config = harvest_config(native.dsn, native.servers, native.group, leadership="solo")
    native.fill(3)
    with Harvest(config):
        eventually(lambda: noted(native).get("partitions") == 2, "known")
    add(admin, native.topic, 4)
    native.fill(3)
    with Harvest(config):
        eventually(lambda: said(caplog) == [(native.topic, 2, 4)], "said")
    with Harvest(config):
        eventually(lambda: noted(native).get("noticed_at"), "kept by the next leader")
    assert said(caplog) == [(native.topic, 2, 4)], "once"


def test_partitions_that_were_added_are_noticed_before_the_next_record(native, admin, caplog):
    config = harvest_config(native.dsn, native.servers, native.group, leadership="solo")
    native.fill(3)
    with Harvest(config):
        eventually(lambda: noted(native).get("partitions") == 2, "known")
    add(admin, native.topic, 4)
    with Harvest(config):
        eventually(lambda: said(caplog) == [(native.topic, 2, 4)], "said")


def test_partitions_that_were_added_between_two_drains_are_noticed(native, admin, caplog, monkeypatch):
    """A drain is over before the first look of a harvester that stays."""
    monkeypatch.setattr(added_partitions, "_FIRST_SECONDS", 3_600)
    config = harvest_config(native.dsn, native.servers, native.group, leadership="solo")
    native.fill(3)
    assert Harvest(config).drain(60).records == 3
    eventually(lambda: noted(native).get("partitions") == 2, "known")
    add(admin, native.topic, 4)
    native.fill(3)
    assert Harvest(config).drain(60).records == 3
    eventually(lambda: said(caplog) == [(native.topic, 2, 4)], "said")
    eventually(lambda: noted(native).get("noticed_at"), "kept")


def test_under_mark_they_are_noticed_while_it_runs(outbox, bootstrap_servers, group_id, admin, caplog):
    config = harvest_config(outbox.dsn, bootstrap_servers, group_id, leadership="solo")
    outbox.fill(3)
    with Harvest(config) as harvest, HarvestTelemetry(harvest) as telemetry:
        eventually(lambda: harvest.delivered_records == 3, "delivered")
        watch = harvest._engine._watch
        eventually(lambda: (watch._known or {}).get(outbox.topic), "known")
        add(admin, outbox.topic, 6)
        eventually(lambda: said(caplog) == [(outbox.topic, 4, 6)], "said")
        noticed_at = datetime.fromisoformat(records(caplog)[0].noticed_at).timestamp()
        assert measured(telemetry) == {outbox.topic: noticed_at}


def test_the_metric_names_the_topics_of_the_last():
    began = datetime(2026, 1, 1, tzinfo=UTC)
    added = [
        Added(topic=f"t{n}", before=1, after=2, noticed_at=began + timedelta(days=n)) for n in range(MOST_TOPICS + 5)
    ]
    assert list(_noticed(added[::-1])) == [(f"t{n}",) for n in range(5, MOST_TOPICS + 5)]


@pytest.mark.parametrize(
    "entry", [None, {}, {"noticed_at": None}, {"noticed_at": "soon"}, {"before": 0}, {"before": "x"}, {"before": 9}]
)
def test_what_somebody_wrote_there_by_hand_costs_itself_only(entry):
    good = {"partitions": 4, "before": 2, "noticed_at": "2026-01-02T03:04:05+00:00"}
    bad = {**good, **entry} if entry else entry
    assert [each.topic for each in added_of({"bad": bad, "good": good})] == ["good"]
