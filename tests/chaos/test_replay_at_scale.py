"""Ten million records from archive and outbox into a new topic, killed twenty times while writers go on."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from support.native import Native
from support.outbox import harvest_config
from support.outbox_format import environment
from support.waiting import eventually
from support.writers import Writers

from harvest_lib.archive import archive_segments
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox.segments import drop_passed
from harvest_lib.record.header import HEADER_NAME, unpack

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(7_200)]

_KEYS = 50_000
_PARTITIONS = 6
_FILL = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), 'orders', 'k' || n %% %(keys)s, rpad(n::text || ' ', 100, 'x'), '{}', '{}'
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""


def fill(native, rows):
    for first in range(0, rows, 500_000):
        last = min(first + 500_000, rows) - 1
        native.connection.execute(_FILL, {"keys": _KEYS, "first": first, "last": last})


def committed_end(servers, topic):
    """Return how many offsets the topic has that readers of committed records may read."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "ends", "isolation.level": "read_committed"})
    try:
        places = [TopicPartition(topic, number) for number in range(_PARTITIONS)]
        return sum(consumer.get_watermark_offsets(place, timeout=60)[1] for place in places)
    finally:
        consumer.close()


def read(servers, topic):
    """Yield each committed record of a topic: key, value and outbox id, partition after partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        for number in range(_PARTITIONS):
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
            at_end = False
            while not at_end:
                for message in consumer.consume(10_000, timeout=1):
                    if message.error() is not None:
                        at_end = True
                        continue
                    header = next(value for name, value in message.headers() if name == HEADER_NAME)
                    yield message.key(), message.value(), unpack(header)[1]
    finally:
        consumer.close()


@pytest.mark.parametrize(("rows", "kills"), [(300_000, 3), (10_000_000, 20)])
def test_each_record_comes_once_in_its_keys_order(dsn, bootstrap_servers, make_topic, group_id, tmp_path, rows, kills):
    native, target = Native(dsn, size=rows // 10, ahead=5), make_topic(partitions=_PARTITIONS)
    native.topic = "orders"
    native.subscribe(native.snapshot())
    reported = {"rows": rows}
    began = time.monotonic()
    fill(native, rows)
    reported["fill_seconds"], began = time.monotonic() - began, time.monotonic()
    archived = sum(
        each.records for each in archive_segments(native.connection, native.table, str(tmp_path / "archive"))
    )
    reported["archive_seconds"], reported["archived"] = time.monotonic() - began, archived
    native.subscribe(native.snapshot())
    assert drop_passed(native.connection, native.table, keep_seconds=0).dropped
    left = native.connection.execute("SELECT count(*) FROM outbox").fetchone()[0]
    assert 0 < left < rows

    command = [sys.executable, "-m", "harvest_lib.spark.replay", "--subscription", "v2", "--topic", f"orders={target}"]
    command += ["--archive", str(tmp_path / "archive"), "--json"]
    work = tmp_path / "work"
    given = environment() | {"HARVEST_DSN": dsn, "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers, "TMPDIR": str(work)}
    dice, killed = random.Random(kills), 0
    began = time.monotonic()
    with Writers(native, pause_seconds=0.02) as writers:
        for number in range(kills + 1):
            work.mkdir()
            before = committed_end(bootstrap_servers, target)
            with (tmp_path / "log").open("w") as log, subprocess.Popen(
                command, cwd=tmp_path, env=given, stdout=log, stderr=log, start_new_session=True
            ) as process:  # fmt: skip
                if number < kills:
                    # Now and then before anything is written, otherwise after some of it was committed.
                    if dice.random() < 0.2:
                        time.sleep(dice.uniform(2, 20))
                    else:
                        eventually(
                            lambda process=process, before=before: (
                                process.poll() is not None or committed_end(bootstrap_servers, target) > before
                            ),
                            seconds=900,
                        )
                        time.sleep(dice.uniform(0, 3))
                    if process.poll() is None:
                        killed += 1
                        os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.wait()
            shutil.rmtree(work)
        assert process.returncode == 0, (tmp_path / "log").read_text()[-3_000:]
        assert killed >= (kills * 3 // 4 if rows > 1_000_000 else 1), (
            f"{killed} of {kills} were killed, the others had ended"
        )
        reported["replay_seconds"], reported["killed"] = time.monotonic() - began, killed
        config = harvest_config(
            dsn,
            bootstrap_servers,
            group_id,
            subscription="v2",
            source="snapshot",
            delivery="transactional",
            leadership="solo",
        )
        with Harvest(config) as harvest:
            eventually(lambda: harvest.delivered_records > 100, seconds=120)
    Harvest(config).drain(300)

    ids = np.empty(rows + sum(writers.committed().values()) + 1, np.int64)
    newest, versions, reordered, count = {}, {}, 0, 0
    began = time.monotonic()
    for key, value, outbox_id in read(bootstrap_servers, target):
        ids[count] = outbox_id
        count += 1
        of = versions if key.startswith(b"key-") else newest
        if int(value.split()[0]) <= of.get(key, -1):
            reordered += 1
        of[key] = int(value.split()[0])
    reported["read_seconds"] = time.monotonic() - began
    reported |= {"records": count, "distinct": len(np.unique(ids[:count])), "reordered": reordered}
    (tmp_path / "report.json").write_text(json.dumps(reported))
    sys.stderr.write(json.dumps(reported) + "\n")
    expected = rows + sum(writers.committed().values())
    assert (count, reported["distinct"], reordered) == (expected, expected, 0)
    assert {key.decode(): version for key, version in versions.items()} == {
        key: version for key, version in writers.committed().items() if version
    }
    native.connection.close()
