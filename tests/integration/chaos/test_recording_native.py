"""Records handed over natively stand in a history as those that Python hands over, and are counted beside them."""

import json
import os
import subprocess
import sys
import time

import psycopg
import pytest
import yaml
from support.outbox import read_topic

from harvest_lib.native import implementation
from harvest_lib.outbox import NativeTable, OutboxTable, append
from harvest_lib.record import OutboxRecord
from infra.chaos.clock import clock_of
from infra.chaos.history.events import Acknowledge, Produce
from infra.chaos.history.reader import read_history
from infra.chaos.recording_native import count_handed_over

pytestmark = pytest.mark.full

RECORDS = 300
_PURGES = """
import json, sys
from pathlib import Path
from infra.chaos.history.writer import HistoryWriter
from harvest_lib.native import sender
from infra.chaos.clock import clock_of
from infra.chaos.recording_clients import Recorder, record

file, servers, topic = Path(sys.argv[1]), *sys.argv[2:]
with HistoryWriter(file) as history:
    record(Recorder(history, file.stem, clock_of(file)), file)
    producer, native = sender.make_with_sender(sender.Producer, {"bootstrap.servers": servers, "linger.ms": 60_000})
    producer.list_topics(topic, 10)
    for number in range(1_000):
        producer.produce(topic, json.dumps({"event": f"e{number}"}))
    producer.poll(1)  # they are with the thread of their broker now
    producer.purge(in_queue=True, in_flight=True, blocking=False)
    while len(producer):
        producer.poll(0.1)
    print("purged", native is not None)
"""


@pytest.fixture
def drained(tmp_path, dsn, bootstrap_servers, group_id, make_topic):
    """Return what drains an outbox in a recorded process, and returns the topic and the history's events."""

    def drain(impl, delivery, *, seconds_off=0.0):
        topic, history = make_topic(partitions=2), tmp_path / "harvester-1.jsonl"
        with psycopg.connect(dsn) as connection:
            NativeTable(outbox=OutboxTable.parse("outbox")).create(connection)
            append(
                connection,
                [
                    OutboxRecord(topic=topic, key=f"k{number % 7}", value=json.dumps({"event": f"e{number}"}))
                    for number in range(RECORDS)
                ],
            )
        if seconds_off:
            clock_of(history).set_off(seconds_off)
        settings = {
            "baseKafkaConfig": {"bootstrap.servers": bootstrap_servers},
            "leaderGroupID": group_id,
            "dataSource": dsn,
            "leadership": "solo",
            "delivery": delivery,
        }
        config = tmp_path / "harvest.yaml"
        config.write_text(yaml.safe_dump({"harvest": settings}))
        command = [sys.executable, "-m", "infra.chaos.recording_clients", history, "run", "-f", config, "--drain"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
        done = subprocess.run(
            command, env={**environment, "HARVEST_IMPL": impl}, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return topic, list(read_history([history], on_bad=pytest.fail))

    return drain


@pytest.mark.parametrize("delivery", ["pipelined", "transactional", "sequenced"])
@pytest.mark.parametrize("impl", ["native", "python"])
def test_each_record_is_told_of_as_it_goes_and_as_it_has_arrived(drained, tmp_path, bootstrap_servers, impl, delivery):
    if implementation().library is None and impl == "native":
        pytest.skip(f"there is no native library here: {implementation().reason}")
    topic, events = drained(impl, delivery)
    produced = [(event.leader_id, event.id, event.event) for event in events if isinstance(event, Produce)]
    assert [event for _, _, event in produced] == [f"e{number}" for number in range(RECORDS)]
    arrived = [event for event in events if isinstance(event, Acknowledge)]
    assert {event.type for event in arrived} == {"ok"}
    assert {event.topic for event in arrived} == {topic}
    found = [
        (str(each.leader_id), each.outbox_id, each.partition, each.offset)
        for each in read_topic(bootstrap_servers, topic)
        if each.outbox_id is not None
    ]
    assert sorted((event.leader_id, event.id, event.partition, event.offset) for event in arrived) == sorted(found)
    assert sorted(outbox_id for _, outbox_id, _ in produced) == sorted(outbox_id for _, outbox_id, _, _ in found)
    assert count_handed_over(tmp_path) == (RECORDS if impl == "native" else 0)


@pytest.mark.skipif(implementation().library is None, reason="there is no native library here")
def test_while_the_clock_is_off_records_have_its_time(drained, tmp_path, bootstrap_servers):
    topic, events = drained("native", "pipelined", seconds_off=-3600.0)
    assert count_handed_over(tmp_path) == RECORDS
    stamped = [each.sent_at for each in read_topic(bootstrap_servers, topic)]
    assert len(stamped) == RECORDS == sum(isinstance(event, Produce) for event in events)
    assert max(stamped) < time.time() - 3000


@pytest.mark.skipif(implementation().library is None, reason="there is no native library here")
def test_a_purge_ends_though_a_thread_of_the_client_tells_python_of_each_record(
    tmp_path, bootstrap_servers, make_topic
):
    command = [
        sys.executable,
        "-c",
        _PURGES,
        tmp_path / "harvester-1.jsonl",
        bootstrap_servers,
        make_topic(partitions=1),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "purged True", done.stderr[-3000:]
