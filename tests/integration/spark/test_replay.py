"""A subscription that is filled with what was before it, and then harvested: each record once, each key in order."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from support.native import Native
from support.outbox import harvest_config, read_topic
from support.outbox_format import environment
from support.waiting import eventually
from support.writers import Writers

from harvest_lib.archive import archive_segments
from harvest_lib.errors import (
    ArchiveError,
    CheckpointError,
    ConfigError,
    DatabaseError,
    KafkaUnavailable,
    TopicMissing,
)
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import append
from harvest_lib.outbox.replays import Replays
from harvest_lib.outbox.segments import drop_passed
from harvest_lib.record import OutboxRecord
from harvest_lib.source import Selection
from harvest_lib.spark.replay import filling, replay
from harvest_lib.spark.replay.__main__ import _arguments, _place
from harvest_lib.spark.replay.filling import ReplayPlace
from harvest_lib.spark.replay.parts import PartSettings, write_parts
from harvest_lib.spark.replay.progress import watched
from harvest_lib.subscriptions.admin import Subscriptions

pytestmark = [pytest.mark.full, pytest.mark.spark]


@pytest.fixture
def native(dsn):
    made = Native(dsn, size=200, ahead=20)
    made.topic = "orders"
    yield made
    made.connection.close()


@pytest.fixture
def place(dsn, bootstrap_servers):
    return ReplayPlace(dsn=dsn, kafka={"bootstrap.servers": bootstrap_servers})


@pytest.fixture
def target(make_topic):
    return make_topic(partitions=3)


@pytest.fixture
def settings(bootstrap_servers, target):
    """Settings of the parts of a replay."""
    return PartSettings(
        kafka={"bootstrap.servers": bootstrap_servers},
        topics={"orders": target},
        group=f"replay-{target}",
        progress_topic=target,
        sender=uuid4(),
    )


@pytest.fixture
def tail(dsn, bootstrap_servers, group_id):
    """Make a harvester of the subscription."""

    def make(**settings):
        return Harvest(
            harvest_config(
                dsn,
                bootstrap_servers,
                group_id,
                subscription="v2",
                source="snapshot",
                delivery="transactional",
                leadership="solo",
                **settings,
            )
        )

    return make


def write(native, count, *, topic="orders", key="k"):
    append(native.connection, [OutboxRecord(topic=topic, key=key, value=f"{n}") for n in range(count)])


def committed(native, topic="orders"):
    rows = native.connection.execute("SELECT id FROM outbox WHERE kafka_topic = %s ORDER BY id", (topic,))
    return [row[0] for row in rows]


def check(servers, target, ids, versions=None):
    found = read_topic(servers, target, isolation="read_committed")
    assert sorted(each.outbox_id for each in found) == ids
    by_key = {}
    for each in found:
        by_key.setdefault(each.key, []).append(int(each.value))
    if versions is not None:
        assert by_key == {key: list(range(1, version + 1)) for key, version in versions.items() if version}


def rows(*ids):
    columns = [[0] * len(ids), list(ids), ["orders"] * len(ids), ["k"] * len(ids), ["v"] * len(ids)]
    lists = [pa.array([["a"]] * len(ids)), pa.array([["b"]] * len(ids))]
    return pa.RecordBatch.from_arrays([*map(pa.array, columns), *lists], [f"c{n}" for n in range(7)])


def subscriptions_of(native):
    return Subscriptions(native.connection, native.table, Selection(table=native.table.identifier))


@pytest.mark.parametrize("partitioner", ["consistent", "murmur2"])
def test_what_was_and_what_comes_is_there_once_in_order(
    spark, native, place, target, tail, bootstrap_servers, partitioner
):
    producer = {"partitioner": partitioner}
    place = replace(place, kafka={**place.kafka, **producer})
    with Writers(native) as writers:
        eventually(lambda: sum(writers.committed().values()) > 200, "there is something to fill in")
        report = replay(spark, place, "v2", {"orders": target})
        assert report.records > 100
        harvest = tail(producer_kafka_config=producer)
        with harvest:
            eventually(lambda: harvest.delivered_records > 100)
    write(native, 5, topic="others")
    tail(producer_kafka_config=producer).drain(60)
    check(bootstrap_servers, target, committed(native), writers.committed())
    found = read_topic(bootstrap_servers, target)
    assert len({(each.key, each.partition) for each in found}) == len({each.key for each in found})
    assert replay(spark, place, "v2", {"orders": target}).already_filled


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.timeout(3_600)
def test_a_replay_that_is_killed_goes_on_where_it_was(native, place, target, tail, bootstrap_servers, tmp_path, kills):
    for number in range(10 * kills):
        write(native, 1_000, key=f"replayed-{number % 17}")
    command = [sys.executable, "-m", "support.slow_replay", "--subscription", "v2", "--topic", f"orders={target}"]
    given = environment() | {"HARVEST_DSN": place.dsn, "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers}
    dice, ended = random.Random(kills), []
    with Writers(native, pause_seconds=0.05) as writers:
        for number in range(kills + 1):
            with (tmp_path / f"{number}.log").open("w") as log, subprocess.Popen(
                [*command, "--json"], cwd=tmp_path, env=given, stdout=log, stderr=log, start_new_session=True
            ) as process:  # fmt: skip
                if number < kills:
                    there = len(read_topic(bootstrap_servers, target))
                    eventually(
                        lambda process=process, there=there: (
                            process.poll() is not None or len(read_topic(bootstrap_servers, target)) > there
                        ),
                        seconds=150,
                    )
                    time.sleep(dice.uniform(0, 0.5))
                    ended.append(process.poll())
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, (tmp_path / f"{kills}.log").read_text()[-3_000:]
        assert None in ended, "every one had ended before it was killed"
        harvest = tail()
        with harvest:
            eventually(lambda: harvest.delivered_records > 10)
    tail().drain(60)
    found = read_topic(bootstrap_servers, target, isolation="read_committed")
    ids = [each.outbox_id for each in found]
    assert sorted(ids) == committed(native)
    of_each = {}
    for each in found:
        of_each.setdefault(each.key, []).append(each.outbox_id)
    assert all(each == sorted(each) for key, each in of_each.items() if key not in writers.committed())


@pytest.mark.full
def test_the_archive_comes_first(spark, native, place, target, tail, bootstrap_servers, tmp_path):
    native.subscribe(native.snapshot())
    write(native, 900)
    list(archive_segments(native.connection, native.table, str(tmp_path / "archive")))
    native.subscribe(native.snapshot())
    before = committed(native)
    assert drop_passed(native.connection, native.table, keep_seconds=0).dropped
    assert len(committed(native)) < len(before)
    with pytest.raises(ConfigError, match="were dropped"):
        replay(spark, place, "v2", {"orders": target})
    report = replay(spark, replace(place, archive=str(tmp_path / "archive")), "v2", {"orders": target})
    assert report.records == 900
    write(native, 10)
    tail().drain(60)
    after = committed(native)
    check(bootstrap_servers, target, sorted({*before, *after}))


def test_nobody_harvests_it_before_it_is_filled(native, place, target, tail):
    write(native, 3)
    replays = Replays(native.table.placed(native.connection))
    replays.create(native.connection)
    replays.begin(native.connection, "v2", {"orders": target}, 3)
    with pytest.raises(CheckpointError, match="is being filled"):
        tail().start()
    subscriptions = subscriptions_of(native)
    subscriptions.add("v2")
    subscriptions.remove("v2")
    assert replays.get(native.connection, "v2") is None


def test_progress_is_told_while_it_goes_on(settings):
    reported = []
    with watched(settings, parts=2, highest_id=20, tell=reported.append):
        eventually(lambda: 0.0 in reported)
        list(write_parts(settings, iter([rows(*range(1, 20))])))
        eventually(lambda: 0.5 in reported)
    assert reported == sorted(reported)


def test_retention_keeps_what_is_to_be_read(spark, native, place, target, monkeypatch):
    write(native, 700)
    monkeypatch.setattr("harvest_lib.spark.replay.filling._fill", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        replay(spark, place, "v2", {"orders": target})
    native.subscribe(native.snapshot())
    assert not drop_passed(native.connection, native.table, keep_seconds=0).dropped
    monkeypatch.undo()
    assert replay(spark, place, "v2", {"orders": target}).records == 700
    assert subscriptions_of(native).get("v2")[0].retention_hold is None
    assert drop_passed(native.connection, native.table, keep_seconds=0).dropped


def test_nothing_is_dropped_while_a_replay_begins(spark, native, place, target, monkeypatch):
    write(native, 700)
    native.subscribe(native.snapshot())
    real, tried = filling._hold, []

    def retention_comes_first(*arguments):
        if not tried:
            tried.append(True)
            with psycopg.connect(place.dsn, autocommit=True) as other, pytest.raises(DatabaseError, match="changing"):
                drop_passed(other, native.table, keep_seconds=0, patience_seconds=0.1)
        real(*arguments)

    monkeypatch.setattr(filling, "_hold", retention_comes_first)
    assert replay(spark, place, "v2", {"orders": target}).records == 700
    assert tried


def test_an_archive_that_began_too_late_is_refused(spark, native, place, target, bootstrap_servers, tmp_path):
    native.subscribe(native.snapshot())
    write(native, 500)
    native.subscribe(native.snapshot())
    assert drop_passed(native.connection, native.table, keep_seconds=0).dropped
    late = replace(place, archive=str(tmp_path / "archive"))
    write(native, 500)
    left = committed(native)
    for _ in range(2):
        with pytest.raises(ArchiveError, match="before its archive began") as caught:
            replay(spark, late, "v2", {"orders": target})
        assert ("has no segment" in caught.value.evidence) == (not list((tmp_path / "archive").glob("segments/*")))
        list(archive_segments(native.connection, native.table, late.archive))
    assert replay(spark, replace(late, without_dropped=True), "v2", {"orders": target}).records == len(left)
    check(bootstrap_servers, target, left)


def test_one_that_is_given_up_or_moved_while_it_goes_on_is_told(spark, native, place, target, monkeypatch):
    write(native, 100)
    subscriptions = subscriptions_of(native)
    real = filling._fill

    def given_up_meanwhile(*arguments):
        with pytest.raises(CheckpointError, match="is being filled"):
            subscriptions.rewind("v2", to="beginning")
        done = real(*arguments)
        subscriptions.remove("v2")
        return done

    monkeypatch.setattr(filling, "_fill", given_up_meanwhile)
    with pytest.raises(CheckpointError, match="was given up while it went on"):
        replay(spark, place, "v2", {"orders": target})


def test_who_wrote_a_part_before_is_fenced(settings, bootstrap_servers, target):

    def slow():
        yield rows(*range(1, 11))
        assert [batch.to_pylist() for batch in write_parts(settings, iter([rows(*range(1, 21))]))] == [
            [{"part": 0, "records": 20, "last_id": 20}]
        ]
        yield rows(*range(11, 16))

    with pytest.raises(KafkaUnavailable, match="another attempt"):
        list(write_parts(settings, slow()))
    again = list(write_parts(settings, iter([rows(*range(1, 26))])))
    assert again[0].to_pylist() == [{"part": 0, "records": 25, "last_id": 25}]
    found = read_topic(bootstrap_servers, target, isolation="read_committed")
    assert [each.outbox_id for each in found] == list(range(1, 26))


@pytest.mark.parametrize(
    ("topics", "error", "text"),
    [
        ({}, ConfigError, "no topic was named"),
        ({"orders": "no topic"}, ConfigError, "cannot name a topic"),
        ({"orders": "missing"}, TopicMissing, "there is no topic 'missing'"),
        ({"orders": "full"}, ConfigError, "is not empty"),
    ],
)
def test_what_cannot_be_filled_is_refused_first(spark, native, place, target, topics, error, text):
    if "full" in topics.values():
        producer = Producer(place.kafka)
        producer.produce(target, "v")
        producer.flush()
        topics = {"orders": target}
    with pytest.raises(error, match=text):
        replay(spark, place, "v2", topics)
    assert Replays(native.table.placed(native.connection)).get(native.connection, "v2") is None


def test_a_subscription_that_is_there_and_other_topics_are_refused(spark, native, place, target, make_topic):
    write(native, 2)
    subscriptions_of(native).add("other")
    with pytest.raises(CheckpointError, match="there is a subscription"):
        replay(spark, place, "other", {"orders": target})
    assert replay(spark, place, "v2", {"orders": target}).records == 2
    with pytest.raises(ConfigError, match="other topics"):
        replay(spark, place, "v2", {"orders": make_topic()})


def test_the_command_writes_with_the_producers_settings(tmp_path):
    file = tmp_path / "harvest.yaml"
    file.write_text(
        "harvest:\n  dataSource: host=db\n  leaderGroupID: g\n  producerKafkaConfig: {partitioner: murmur2}\n"
    )
    options = _arguments().parse_args(["-f", str(file), "--bootstrap-servers", "b:9092", "--subscription", "v2"])
    assert _place(options).kafka["partitioner"] == "murmur2"


def test_another_archive_is_refused_and_nothing_is_lost(spark, native, place, target, tmp_path):
    (tmp_path / "outbox.json").write_text(json.dumps({"version": 1, "outbox": "o", "identity": "other"}))
    write(native, 2)
    with pytest.raises((ArchiveError, CheckpointError), match=r"another outbox|ended early"):
        replay(spark, replace(place, archive=str(tmp_path)), "v2", {"orders": target})
    assert replay(spark, place, "v2", {"orders": target}).records == 2
