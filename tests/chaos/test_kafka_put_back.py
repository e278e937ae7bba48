"""A broker whose volume is put back, and that has grown past all positions before its readers see it again."""

import json
import shutil
import signal
import subprocess
import sys
from contextlib import closing

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.pipeline_ends import KafkaSource, collect
from support.servers import own_cluster
from support.waiting import eventually

from harvest_lib.consume import Sequencer, read_committed
from harvest_lib.errors import CheckpointError, PositionLost
from harvest_lib.local_stack.kafka import KafkaCluster
from harvest_lib.record.last_read import LastRead

pytestmark = pytest.mark.full

CONSUMER = """
import sys
from harvest_lib.consume import Sequencer, read_committed
for group in read_committed({"bootstrap.servers": sys.argv[1]}, sys.argv[2], 0, sequencer=Sequencer()):
    for message in group:
        print(message.offset, flush=True)
"""
PIPELINE = """
import sys
from harvest_lib.pipeline.adaptors import reading
from harvest_lib.pipeline.message import Op
adaptor = reading("kafka")
options = adaptor.options(kafka={"bootstrap.servers": sys.argv[1]}, topics=[sys.argv[2]])
for batch in adaptor.make(options).read({}):
    for message in batch:
        if message.op is not Op.NOOP:
            print(message.data["id"], flush=True)
"""


@pytest.fixture
def broker(parts, tmp_path):
    with own_cluster(KafkaCluster(tmp_path / "kafka", parts=parts)) as cluster:
        yield cluster


@pytest.fixture
def live(broker, unique, tmp_path):
    """Start a reader of the topic in a process of its own; return the process, and the file with what it has read."""
    made = []

    def start(name, program):
        output = tmp_path / f"{name}.out"
        with output.open("w") as file, output.with_suffix(".err").open("w") as errors:
            made.append(
                subprocess.Popen(
                    [sys.executable, "-c", program, broker.bootstrap_servers, "orders"], stdout=file, stderr=errors
                )
            )
        return made[-1], output

    yield start
    for each in made:
        each.kill()
        each.wait()


def restart(broker):
    broker.start_broker(1)
    broker.await_ready()


@pytest.mark.parametrize("epochs", ["that came again", "that went on"])
def test_readers_stop_at_it_whether_they_were_running_or_not(broker, live, tmp_path, epochs):
    settings = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(60)

    def write(*ids):
        producer = Producer(settings)
        for each in ids:
            message = {"op": "insert", "timestamp": 1, "namespace": "orders", "data": {"id": each}}
            producer.produce("orders", json.dumps(message))
        assert producer.flush(60) == 0

    write(*range(5))
    broker.stop()
    shutil.copytree(broker.data(1), tmp_path / "volume")
    restart(broker)
    write(*range(5, 10))
    source, sequencer = KafkaSource(broker.bootstrap_servers, "orders"), Sequencer()
    with closing(source.reader()) as reader:
        _, last = collect(reader, until=lambda found, _: len(found) == 10)
    for _ in read_committed(settings, "orders", 0, sequencer=sequencer, end=10):
        pass
    assert isinstance(sequencer.last, LastRead)
    running = [live("consumer", CONSUMER), live("pipeline", PIPELINE)]
    for process, output in running:
        eventually(lambda output=output: output.read_text().endswith("\n9\n"), "all is read")
        process.send_signal(signal.SIGSTOP)
    broker.kill()
    shutil.rmtree(broker.data(1))
    shutil.copytree(tmp_path / "volume", broker.data(1))
    if epochs == "that went on":
        restart(broker)
        broker.stop()
    restart(broker)
    write(*range(20, 40))
    for process, output in running:
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 1
        assert output.read_text().split() == [str(each) for each in range(10)]
        assert "lost its end" in output.with_suffix(".err").read_text() or epochs == "that went on"
    for _ in range(2):
        with closing(source.reader()) as reader, pytest.raises(PositionLost, match="lost its end") as lost:
            next(reader.read(last))
        assert lost.value.wears_off
        again = Sequencer(offset=10, last=sequencer.last)
        with pytest.raises(CheckpointError, match="lost its end"):
            next(read_committed(settings, "orders", 0, sequencer=again))


def test_a_broker_that_was_only_away_is_read_on(broker, live):
    settings = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(60)
    source = KafkaSource(broker.bootstrap_servers, "orders")
    source.put(*range(5))
    running = [live("consumer", CONSUMER), live("pipeline", PIPELINE)]
    for kill in (broker.stop, broker.kill):
        for _, output in running:
            eventually(lambda output=output: output.read_text().endswith("4\n"), "all is read")
        kill()
        restart(broker)
    source.put(*range(5, 9))
    for _, output in running:
        eventually(lambda output=output: output.read_text().endswith("8\n"), "all is read")
        assert output.read_text().split() == [str(each) for each in range(9)]
