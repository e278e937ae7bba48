"""A process that harvests forks, or ends in the middle of a batch: it crashes by neither, and nothing is lost.

Each is a process of its own, under either implementation.
"""

import signal
from pathlib import Path

import pytest
import yaml
from support.handing_over import insert, made_outbox, run_python
from support.outbox import harvest_config, read_topic

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.native import library

pytestmark = pytest.mark.full

RECORDS = 4_000

# A batch is on its way when it is flushed: all of it was handed over, and none is sent for a while yet.
PROGRAM = """
import os, signal, sys, threading, time
from harvest_lib.cli.terminal import stop_on_signals
from harvest_lib.config import load
from harvest_lib.delivery.producer import BatchProducer
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.native import NativeSender

file, way = sys.argv[1:]
begun, flush, send = threading.Event(), BatchProducer.flush, NativeSender.send
natively = 0

def flushing(self, *given):
    if len(self._client) > 0:
        begun.set()
    return flush(self, *given)

def sending(self, rows, **named):
    global natively
    went, code = send(self, rows, **named)
    natively += went
    return went, code

BatchProducer.flush, NativeSender.send = flushing, sending
harvest = Harvest(load(file).harvest)
harvest.start()
assert begun.wait(60)
print("natively" if natively else "in python", flush=True)
if way == "exit":
    sys.exit(3)
elif way == "exit at once":
    os._exit(3)
elif way == "uncaught":
    raise RuntimeError("of the application")
elif way == "signal":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
elif way == "asked to stop":
    stop_on_signals(lambda: open(file + ".enough", "w").close())  # as `harvest run` is
    os.kill(os.getpid(), signal.SIGTERM)
elif way == "fork":
    child = os.fork()
    if child == 0:
        os._exit(0 if harvest.state else 1)
    assert os.waitpid(child, 0)[1] == 0
elif way == "fork and interpreter":
    child = os.fork()
    if child == 0:
        sys.exit(0)  # with all that interpreters do at their end
    assert os.waitpid(child, 0)[1] == 0
deadline = time.monotonic() + 60
while not os.path.exists(file + ".enough") and time.monotonic() < deadline:
    time.sleep(0.05)
harvest.stop()
harvest.await_stopped()
print("stopped", flush=True)
"""


@pytest.fixture
def delivered(dsn, bootstrap_servers, group_id, make_topic, tmp_path, impl):
    """Return what runs the program, drains what is left, and returns the process and the ids as readers see them."""

    def run(way, delivery):
        made_outbox(dsn)
        topic = make_topic()
        insert(dsn, [(topic, f"{number % 9}", "v" * 200, ["a"], ["b"]) for number in range(RECORDS)])
        settings = {
            "baseKafkaConfig": {"bootstrap.servers": bootstrap_servers},
            "producerKafkaConfig": {"linger.ms": 300},
            "leaderGroupID": group_id,
            "dataSource": dsn,
            "leadership": "solo",
            "delivery": delivery,
        }
        config = tmp_path / "harvest.yaml"
        config.write_text(yaml.safe_dump({"harvest": settings}))
        if way.startswith("fork"):
            Path(f"{config}.enough").touch()
        done = run_python(PROGRAM, config, way, seconds=150, **{library.VARIABLE: impl})
        rest = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", delivery=delivery)
        Harvest(rest).drain(60)
        found = [each.outbox_id for each in read_topic(bootstrap_servers, topic, isolation="read_committed")]
        return done, [each for each in found if each is not None]

    return run


@pytest.mark.parametrize("delivery", ["transactional", "pipelined", "sequenced"])
@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("exit", 3),
        ("exit at once", 3),
        ("uncaught", 1),
        ("signal", -signal.SIGTERM),
        ("asked to stop", 0),
        ("fork", 0),
        ("fork and interpreter", 0),
    ],
)
def test_a_batch_that_is_on_its_way_is_not_lost(delivered, impl, delivery, way, code):
    done, found = delivered(way, delivery)
    assert done.returncode == code, done.stderr[-3_000:]
    assert "Fatal" not in done.stderr, done.stderr[-3_000:]
    assert done.stdout.splitlines()[0] == ("natively" if impl == "native" else "in python")
    assert list(dict.fromkeys(found)) == list(range(1, RECORDS + 1))
    if delivery != "pipelined":
        assert len(found) == RECORDS
