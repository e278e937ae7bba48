"""Partitions that are added to a topic split its keys: said when it is seen, also by who was not running then."""

import pytest
from confluent_kafka.cimpl import NewPartitions
from support.outbox import harvest_config
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.database import connect
from harvest_lib.harvester import added_partitions
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.status import StatusReader


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
        future.result(10)


def said(caplog):
    return [(each.topic, each.before, each.after) for each in caplog.records if each.getMessage() == "partitions_added"]


def noted(native):
    known = native.connection.execute("SELECT leader -> 'topics' FROM outbox_subscriptions").fetchone()
    return (known[0] or {}).get(native.topic, {}) if known else {}


def notes(native, config):
    with connect(native.dsn) as connection:
        return [each for each in StatusReader(connection, config).leaders().notes if "partitions" in each]


def test_partitions_that_are_added_while_it_runs(native, admin, caplog):
    config = harvest_config(native.dsn, native.servers, native.group, leadership="solo")
    native.fill(3)
    with Harvest(config) as harvest:
        eventually(lambda: harvest.delivered_records == 3, 20, "delivered")
        eventually(lambda: noted(native).get("partitions") == 2, 10, "known")
        assert notes(native, config) == []
        add(admin, native.topic, 5)
        eventually(lambda: said(caplog) == [(native.topic, 2, 5)], 20, "said")
        eventually(lambda: noted(native).get("noticed_at"), 10, "written down")
    (note,) = notes(native, config)
    assert native.topic in note
    assert "2 before and 5 now" in note
    assert noted(native)["noticed_at"] in note


def test_partitions_that_were_added_while_nobody_ran(native, admin, caplog):
    config = harvest_config(native.dsn, native.servers, native.group, leadership="solo")
    native.fill(3)
    with Harvest(config):
        eventually(lambda: noted(native).get("partitions") == 2, 20, "known")
    add(admin, native.topic, 4)
    native.fill(3)
    with Harvest(config):
        eventually(lambda: said(caplog) == [(native.topic, 2, 4)], 20, "said")
    with Harvest(config):
        eventually(lambda: noted(native).get("noticed_at"), 20, "kept by the next leader")
    assert said(caplog) == [(native.topic, 2, 4)], "once"


def test_under_mark_they_are_noticed_while_it_runs(outbox, bootstrap_servers, group_id, admin, caplog):
    config = harvest_config(outbox.dsn, bootstrap_servers, group_id, leadership="solo")
    outbox.fill(3)
    with Harvest(config) as harvest:
        eventually(lambda: harvest.delivered_records == 3, 20, "delivered")
        watch = harvest._engine._watch
        eventually(lambda: (watch._known or {}).get(outbox.topic), 10, "known")
        add(admin, outbox.topic, 6)
        eventually(lambda: said(caplog) == [(outbox.topic, 4, 6)], 20, "said")
