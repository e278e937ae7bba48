"""Commands of tests run in this process: that is the same as a process of their own, and leaves nothing behind."""

import gc
import logging
import os
import signal
import sys

import pytest

pytestmark = pytest.mark.gate


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--drain", "-f", "{reaper}"),
        ("status", "-f", "{reaper}"),
        ("init", "--table", "other", "-f", "{reaper}"),
        ("init", "--table", "oth;er", "--no-such-option"),
        ("park", "drop", "--all", "-f", "{reaper}"),
        ("run", "-f", "/nowhere.yaml"),
        (),
    ],
)
def test_both_say_the_same(harvest, reaper, outbox, arguments):
    arguments = [each.format(reaper=reaper) for each in arguments]
    before = state()
    here = harvest(*arguments)
    assert state() == before
    there = harvest(*arguments, alone=True)
    assert here.returncode == there.returncode
    if "init" not in arguments:  # which creates once
        assert shape(here.stdout) == shape(there.stdout)
        assert not here.returncode or shape(here.stderr) == shape(there.stderr)  # else the log of clients


def state():
    root = logging.getLogger()
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    return (
        root.handlers[:],
        root.level,
        handlers,
        dict(os.environ),
        sys.argv[:],
        sys.stdin,
        sys.stdout,
        sys.stderr,
        gc.get_threshold(),
        sys.getswitchinterval(),
    )


def shape(text):
    """Return the words but those with digits: times and ids differ."""
    return [word for word in text.replace("python -m harvest_lib.cli", "harvest").split() if word.isalpha()]
