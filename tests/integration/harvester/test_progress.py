"""The log of a harvester while nothing is wrong: a line a minute; and the topics of parked records."""

import logging
import threading

import psycopg
import pytest
from support.native import Native
from support.outbox import Outbox, harvest_config
from support.waiting import eventually

from harvest_lib.harvester import status
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.housekeeping import progress
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox import append
from harvest_lib.record import OutboxRecord

pytestmark = pytest.mark.gate

SOURCES = {"mark": {}, "snapshot": {}, "mark, exactly once": {"source": "mark", "delivery": "transactional"}}


@pytest.fixture(params=SOURCES.values(), ids=SOURCES)
def started(request, dsn, bootstrap_servers, group_id, make_topic, caplog, monkeypatch):
    """A harvester by each source, with a topic; the line comes every half second."""
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.5)
    caplog.set_level(logging.INFO)
    topic = make_topic()
    if "snapshot" in request.node.callspec.id:
        Native(dsn, size=1_000_000).connection.close()
    else:
        Outbox(dsn, topic).connection.close()
    with Harvest(harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", **request.param)) as harvest:
        yield harvest, topic, caplog


def events(caplog, name):
    return [each for each in caplog.records if each.getMessage() == name]


def write(dsn, *records):
    with psycopg.connect(dsn) as connection:
        append(connection, [OutboxRecord(topic=topic, key=key, value="v") for topic, key in records])


def test_the_leader_says_once_in_a_while_how_it_goes(started, dsn):
    harvest, topic, caplog = started
    write(dsn, *[(topic, f"k{number}") for number in range(30)])
    eventually(lambda: harvest.delivered_records == 30, "delivered")
    eventually(lambda: any(each.delivered == 30 for each in events(caplog, "harvest_progress")), "said")
    said = events(caplog, "harvest_progress")
    assert {each.levelname for each in said} == {"INFO"}
    assert any(each.records_per_second > 0 for each in said)
    eventually(lambda: events(caplog, "harvest_progress")[-1].backlog_age_seconds == 0.0, "nothing waits")


def test_the_age_is_that_of_the_oldest_record_that_waits(started, dsn):
    harvest, topic, _ = started
    write(dsn, (topic, "k"))
    eventually(lambda: harvest.delivered_records == 1, "delivered")
    harvest.stop()
    assert harvest.await_stopped(60)
    with psycopg.connect(dsn, autocommit=True) as connection:
        reader = StatusReader(connection, harvest.config)
        assert reader.oldest_age_seconds() == 0.0
        for hours in (2, 1):
            connection.execute(
                "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) "
                "VALUES (now() - make_interval(hours => %s), %s, 'k', '{}', '{}')",
                (hours, topic),
            )
        assert reader.oldest_age_seconds() // 3_600 == 2


def test_a_standby_and_a_postgres_that_is_away_are_no_trouble(dsn, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    leads, asked = [], []

    def is_leader():
        asked.append(None)
        return bool(leads)

    line = progress.ProgressLog(
        "host=127.0.0.1 port=1 dbname=x connect_timeout=1",
        delivered=lambda: 5,
        leads=is_leader,
        backlog_age_seconds=lambda _: 1.0,
    )
    assert line._age() is None
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.05)
    over = threading.Event()
    line.begin(over)
    eventually(lambda: len(asked) > 3, "it is time for a line, and again")
    assert events(caplog, "harvest_progress") == []
    leads.append(True)
    eventually(lambda: events(caplog, "harvest_progress"), "said")
    over.set()
    assert events(caplog, "harvest_progress")[0].backlog_age_seconds is None


def test_the_topics_of_parked_records_are_said(started, dsn):
    harvest, topic, caplog = started
    write(dsn, (f"{topic}-none", "a"), (topic, "b"), (f"{topic}-nowhere", "c"))
    eventually(lambda: harvest.delivered_records == 1, "delivered")

    def named():
        return {name for each in events(caplog, "records_parked") for name in each.topics}

    eventually(lambda: named() == {f"{topic}-none", f"{topic}-nowhere"}, "both are named")


def test_the_age_is_read_from_the_first_records_that_wait(dsn, bootstrap_servers, group_id, monkeypatch):
    """It is asked for once a minute: a large backlog is not counted for it."""
    monkeypatch.setattr(status, "SAMPLED", 5)
    monkeypatch.setattr(status, "_FEWEST_SAMPLED", 1)
    native = Native(dsn, size=1_000_000)
    native.subscribe(native.snapshot())
    reader = StatusReader(native.connection, harvest_config(dsn, bootstrap_servers, group_id, subscription="s"))
    assert reader.oldest_age_seconds() == 0.0

    def write(topic, hours, records):
        native.connection.execute(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key) "
            "SELECT now() - make_interval(hours => %s), %s, 'k' FROM generate_series(1, %s)",
            (hours, topic, records),
        )

    write("theirs", 2, 10)
    write("ours", 9, 1)
    assert reader.oldest_age_seconds() // 3_600 == 2
    native.connection.execute("UPDATE outbox_subscriptions SET topics = ARRAY['ours']")
    assert reader.oldest_age_seconds() // 3_600 == 9, "none of the first is ours"
    native.connection.close()
