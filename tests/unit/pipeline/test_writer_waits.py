"""A destination whose database does not answer any more is waited for, each attempt with a writer of its own."""

import psycopg
import pytest
from support.pipelines import Running, Script, Taking, declared, message, messages
from support.waiting import eventually

from harvest_lib.clock import Deadline
from harvest_lib.errors import DatabaseUnavailable, PipelineError
from harvest_lib.pipeline import operations, writer_thread
from harvest_lib.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.quick


class Away(Taking):
    """Is away for some attempts once it has taken the first message; of those that it gets at once, it took none."""

    def __init__(self, attempts):
        super().__init__()
        self.failing = DatabaseUnavailable("Postgres does not answer", evidence="gone", next_step="")
        self.attempts = attempts
        self.refuses = lambda _: self._is_away()

    def _is_away(self):
        self.attempts -= bool(self.writes)
        return bool(self.writes) and self.attempts >= 0


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(writer_thread, "_FIRST_PAUSE_SECONDS", 0.0)


def waits(caplog):
    return [each for each in caplog.records if each.getMessage() == "writer_waits"]


@pytest.mark.parametrize("on_error", ["stop", "stop_writer"])
def test_it_goes_on_where_it_stood_and_the_others_meanwhile(tmp_path, caplog, on_error):
    away, other = Away(3), Taking()
    given = {"away": away, "other": other}
    script = Script(messages("A"), ends=False)
    running = Running(declared(tmp_path, script, given, settings={"away": {"on_error": on_error}}))
    eventually(lambda: away.offsets == [0], "the first is taken")
    script.given += messages("A" * 19, first=1)
    eventually(lambda: away.offsets == other.offsets == list(range(20)), "it goes on")
    running.stop()
    assert running.failure is None
    assert away.closed == 4, "each attempt has a writer of its own"
    assert other.closed == 1
    assert [(each.writer, each.at, each.reason) for each in waits(caplog)] == [
        ("away", 1, "Postgres does not answer; gone")
    ]


def test_a_server_that_opens_no_session_has_refused_no_bulk(tmp_path, caplog):
    away, script = Away(5), Script(messages("A"), ends=False)
    away.failing.__cause__ = psycopg.OperationalError("connection failed: FATAL:  the database system is starting up")
    running = Running(declared(tmp_path, script, {"away": away}))
    eventually(lambda: away.offsets == [0], "the first is taken")
    script.given += messages("A" * 19, first=1)
    eventually(lambda: away.offsets == list(range(20)), "it goes on")
    running.stop()
    assert running.failure is None
    assert "writer_goes_singly" not in [each.getMessage() for each in caplog.records]


def test_it_is_said_again_where_it_was_there_meanwhile(tmp_path, caplog):
    away, script = Away(2), Script(messages("A"), ends=False)
    running = Running(declared(tmp_path, script, {"away": away}))
    eventually(lambda: away.offsets == [0], "the first is taken")
    for number in (1, 2):
        script.given.append(message("A", number))
        eventually(lambda: away.offsets == list(range(number + 1)), "it goes on")  # noqa: B023
        away.attempts = 2
    running.stop()
    assert running.failure is None
    assert [each.at for each in waits(caplog)] == [1, 2]


def test_once_its_time_is_over_it_ends_and_the_next_start_sends_the_rest(tmp_path):
    away = Away(10**6)
    script = Script(messages("A"), ends=False)
    declaration = declared(tmp_path, script, {"away": away})
    running = Running(declaration)
    eventually(lambda: away.offsets == [0], "the first is taken")
    script.given += messages("A" * 19, first=1)
    eventually(lambda: away.attempts < 10**6, "it is away")
    (thread,) = running.pipeline.writers
    thread.finish(Deadline(0.0))
    eventually(lambda: not thread.at_work, "it has ended")
    running.stop()
    assert running.failure is None
    (writer,) = operations.pipeline_status(declaration).writers
    assert writer.position == 1
    away.attempts, script.ends = 0, True
    Pipeline(declaration).run()
    assert away.offsets == list(range(20))


def test_one_that_is_away_as_it_resumes_ends_the_pipeline(tmp_path):
    script, away = Script(messages("A" * 3)), Away(0)
    declaration = declared(tmp_path, script, {"away": away})
    Pipeline(declaration).run()
    script.given += messages("A", first=3)
    taking = Taking()
    taking.refuses, taking.failing = lambda _: True, ValueError("no")
    with pytest.raises(PipelineError):
        Pipeline(declared(tmp_path, script, {"away": taking})).run()
    away.refuses = lambda _: True
    with pytest.raises(PipelineError, match="did not take offset 3"):
        Pipeline(declaration).run()
