"""The runner of the demos: parts that are watched and ended, feeds, and the end of the program."""

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from harvest_lib.errors import StackError
from infra.demo import runner
from infra.demo.feeding import Feed
from infra.demo.place import Place
from infra.demo.progress import Progress
from infra.demo.runner import DemoRun, run_demo
from infra.interruption import Interrupted

pytestmark = pytest.mark.quick

PLACE = Place(dsn="host=a password=secret", bootstrap_servers="b:1", topic="t", group="g")


@pytest.fixture
def run(tmp_path):
    with DemoRun(tmp_path, PLACE, Progress(Console(file=io.StringIO()))) as demo:
        yield demo


class Part:
    """A part that notes the calls of all."""

    def __init__(self, name, calls, error=None):
        self._name, self._calls, self._error = name, calls, error

    def start(self):
        self._calls.append(f"{self._name} starts")

    def look(self):
        if self._error is not None:
            raise self._error

    def stop(self):
        self._calls.append(f"{self._name} stops")


def test_parts_end_in_reverse_and_files_with_passwords_are_removed(run, tmp_path):
    calls = []
    with run:
        file = run.private_file("harvest.yaml", PLACE.reaper_yaml())
        assert "secret" in file.read_text()
        for name in ("a", "b"):
            run.start(Part(name, calls))
    assert calls == ["a starts", "b starts", "b stops", "a stops"]
    assert list(tmp_path.iterdir()) == []


def test_a_wait_raises_what_a_part_failed_of_until_it_is_let_go(run):
    part = Part("a", [], StackError("it ended", next_step="look"))
    run.start(part)
    with pytest.raises(StackError, match="it ended"):
        run.wait(lambda: True, "it does not come")
    run.let_go(part)
    assert run.wait(lambda: "there", "it does not come") == "there"


def test_a_password_is_in_the_environment_and_not_on_the_command_line(monkeypatch):
    monkeypatch.setenv("HARVEST_DSN", "another")
    monkeypatch.setenv("PGHOST", "another")
    found = PLACE.environment()
    assert found["PGPASSWORD"] == "secret"
    assert found.keys().isdisjoint({"HARVEST_DSN", "PGHOST"})
    assert "secret" not in PLACE.dsn_without_password()


def test_a_feed_pauses_until_it_is_woken_and_takes_no_step_once_stopped():
    taken, began = [], threading.Semaphore(0)

    def steps():
        for number in range(10):
            taken.append(number)
            began.release()
            yield None

    feed = Feed("numbers", steps)
    feed.start()
    began.acquire()
    feed.wake()
    began.acquire()
    assert not feed.done
    feed.stop()
    assert (taken, feed.done) == ([0, 1], True)


def test_a_feed_that_failed_is_not_done():
    def steps():
        yield 0.0
        raise StackError("Postgres is gone", next_step="look")

    feed = Feed("numbers", steps)
    feed.start()
    feed._thread.join()
    for ask in (feed.look, lambda: feed.done):
        with pytest.raises(StackError, match="Postgres is gone"):
            ask()


@pytest.mark.parametrize(
    ("kept", "error", "code", "said"),
    [
        ([{"ok": True}], None, 0, "table True"),
        ([{"ok": False}], None, 1, "table False"),
        ([{"ok": True}, {"ok": False}], None, 1, "table False"),
        ([{"ok": True}], StackError("a server failed", next_step="look"), 1, "table True"),
        ([], StackError("a server failed", next_step="look"), 1, ""),
        ([{"ok": True}], Interrupted(15), 143, "interrupted: everything that was started has been stopped"),
        ([], Interrupted(2), 130, "interrupted: everything that was started has been stopped"),
    ],
)
def test_the_last_report_is_written_and_shown_however_a_demo_ends(
    kept, error, code, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("HARVEST_HOME", str(tmp_path))
    monkeypatch.setattr(runner, "interrupt_on_signals", lambda: None)

    def conduct(folder, _progress, keep):
        assert folder == tmp_path / "demo-x"
        for report in kept:
            keep(report)
        if error is not None:
            raise error

    assert run_demo("demo-x", conduct, lambda report: [f"table {report['ok']}"]) == code
    printed, errors = capsys.readouterr()
    assert said in printed
    assert (Path("demo-x") / "report.json").as_posix() in printed or not kept
    assert ("a server failed" in errors) == isinstance(error, StackError)
