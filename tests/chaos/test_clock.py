"""A wall clock that is off in one process."""

import json
import subprocess
import sys
import time

import pytest

from infra.chaos.clock import clock_of

pytestmark = pytest.mark.full

HOUR = 3600.0
LOOK = """
import sys, threading
from pathlib import Path
from infra.chaos import recording_clients as recorded

class Told:
    def __init__(self, settings): self.stamps = []
    def produce(self, *arguments): self.stamps.append(arguments[6])

def ask():
    import json, time
    from harvest_lib.clock import boot_seconds
    producer = recorded.RecordedProducer(recorder, {})
    producer.produce("topic", b"", None)
    print(json.dumps([time.time(), boot_seconds(), producer.stamps]), flush=True)

recorded.Producer = Told
recorded.record = lambda made, _history: globals().update(recorder=made)
recorded.cli.main = ask
recorded.main()
"""


def asked(history):
    """Return what a process that writes this history takes for the time: wall, boot, and stamps of records."""
    done = subprocess.run([sys.executable, "-c", LOOK, history], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_it_is_off_where_it_was_set_off_and_nowhere_else(tmp_path):
    history = tmp_path / "harvester-1.jsonl"
    clock_of(history).set_off(-HOUR)
    began, began_boot = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    wall, boot, (stamp,) = asked(history)
    ended, ended_boot = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    assert began - HOUR <= wall <= ended - HOUR
    assert began - HOUR - 1 <= stamp / 1000 <= ended - HOUR, "its records are stamped by it"
    assert began_boot <= boot <= ended_boot


def test_it_is_true_as_long_as_nobody_sets_it_off(tmp_path):
    history = tmp_path / "harvester-1.jsonl"
    began = time.time()
    wall, _, stamps = asked(history)
    assert began <= wall <= time.time()
    assert stamps == [0], "the client stamps"


def test_it_is_set_right_again(tmp_path):
    clock = clock_of(tmp_path / "harvester-1.jsonl")
    clock.set_off(HOUR)
    assert clock.off_seconds() == HOUR
    clock.set_right()
    assert clock_of(tmp_path / "harvester-1.jsonl").off_seconds() == 0
