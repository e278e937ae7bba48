"""Threads whose errors are heard of: of any kind, with their owner told, and periodic work that goes on."""

import asyncio
import logging
import subprocess
import sys
import threading

import pytest
from support.waiting import eventually

from harvest_lib.process import threads

pytestmark = pytest.mark.quick


class Panic(BaseException):
    """As pyo3's PanicException, which a panic of an extension in Rust raises."""


ANY = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Panic, ValueError]


class Unspeakable(BaseException):
    def __str__(self):
        raise Panic


def failing(error):
    def work():
        raise error

    return work


def events(caplog, name):
    return [record for record in caplog.records if record.message == name]


@pytest.mark.parametrize("error", [*(kind("why") for kind in ANY), Unspeakable()])
def test_an_error_that_ends_a_thread_is_logged_and_passed_on(error, caplog):
    passed = []
    threads.start("worker", failing(error), on_error=passed.append).join()
    assert passed == [error]
    (said,) = events(caplog, "thread_died")
    assert (said.what, said.levelno) == ("worker", logging.ERROR)
    assert said.reason.startswith(type(error).__name__)


def test_an_end_in_order_is_no_error(caplog):
    passed = []
    threads.start("worker", lambda: None, on_error=passed.append).join()
    assert not passed
    assert not caplog.records


LEFT_ALONE = """
import threading
from harvest_lib.process import threads
threads.repeat(
    "work", lambda: None, stopping=threading.Event(), pause_seconds=lambda: 3600, at_end=lambda: print("last look")
)
"""


def test_a_process_ends_though_nothing_stopped_a_thread_that_it_waits_for():
    """A program that starts a harvester, and whose main thread comes to its end or fails."""
    done = subprocess.run([sys.executable, "-c", LEFT_ALONE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "last look\n"


class Refusing(logging.Handler):
    """A handler of the user's that raises."""

    def emit(self, _record):
        raise Panic


@pytest.fixture
def refusing():
    handler, logger = Refusing(), logging.getLogger("harvest_lib.process.threads")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


def test_the_owner_is_told_although_a_log_handler_raises(refusing):
    passed = []
    threads.start("worker", failing(SystemExit("why")), on_error=passed.append).join()
    assert len(passed) == 1


class Rounds:
    """Work that raises what its script says, and then succeeds."""

    def __init__(self, *script):
        self.script, self.done, self.stopping = list(script), 0, threading.Event()

    def __call__(self):
        self.done += 1
        if self.script and (error := self.script.pop(0)) is not None:
            raise error

    def repeat(self, **options):
        return threads.repeat("rounds", self, stopping=self.stopping, pause_seconds=lambda: 0.01, **options)


@pytest.fixture(autouse=True)
def no_pause_after_errors(monkeypatch):
    monkeypatch.setattr(threads, "_LOOK_SECONDS", 0.01)


def test_periodic_work_goes_on_after_errors_of_any_kind_and_each_is_said_once(caplog):
    rounds = Rounds(*(kind("why") for kind in ANY for _ in range(2)), None, SystemExit("why"))
    thread = rounds.repeat()
    eventually(lambda: rounds.done > 2 * len(ANY) + 3, "it went on")
    rounds.stopping.set()
    thread.join()
    assert [said.reason for said in events(caplog, "thread_troubled")] == [
        *(f"{kind.__name__}: why" for kind in ANY),
        "SystemExit: why",
    ]


def test_an_owner_hears_of_each_error_of_periodic_work(caplog):
    heard = []
    rounds = Rounds(SystemExit(1), Panic(2))
    thread = rounds.repeat(on_error=heard.append)
    eventually(lambda: rounds.done > 3, "it went on")
    rounds.stopping.set()
    thread.join()
    assert [type(error) for error in heard] == [SystemExit, Panic]
    assert not events(caplog, "thread_troubled")


def test_periodic_work_goes_on_although_owner_and_log_handler_raise(refusing):
    rounds = Rounds(*[SystemExit(1)] * 5)
    thread = rounds.repeat(on_error=failing(Panic()))
    eventually(lambda: rounds.done > 6, "it went on")
    rounds.stopping.set()
    thread.join()


def test_periodic_work_ends_once_it_is_not_needed():
    rounds = Rounds()
    rounds.repeat(is_needed=lambda: rounds.done < 3).join()
    assert rounds.done == 3
