"""`harvest history`: its answers and exit codes."""

import json

import pytest
from support.written_history import Pen
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.errors import FOUND_EXIT_CODE, NothingChecked
from infra.chaos.history.writer import HistoryWriter

pytestmark = pytest.mark.quick


@pytest.fixture
def run(tmp_path):
    def run(pen, *options, line=""):
        path = tmp_path / "h.jsonl"
        path.unlink(missing_ok=True)
        with HistoryWriter(path) as writer:
            for event in pen.events:
                writer.append(event)
        path.write_text(path.read_text() + line)
        return CliRunner().invoke(app, ["history", str(path), *options])

    return run


def test_a_promise_that_is_kept(run):
    pen = Pen().write("a1").produce("a1").acknowledge("a1", end="fail").produce("a1").poll("a1 a1")
    result = run(pen, "--promise", "at_least_once")
    assert result.exit_code == 0, result.output
    assert "the guarantee holds" in result.output
    assert "duplicate-adjacent" in result.output
    assert run(pen, "--promise", "transactional").exit_code == FOUND_EXIT_CODE


def test_a_promise_that_is_not_kept(run):
    pen = Pen().write("a1 a2").poll("a2 a1")
    result = run(pen, "--promise", "at_least_once", "--pipelined")
    assert result.exit_code == FOUND_EXIT_CODE
    assert "does not hold" in result.output
    assert "int-nonmonotonic-send" in result.output
    assert '"event":"event-a2"' in result.output
    assert '"event"' not in run(pen, "--promise", "at_least_once", "--show", "0").output


def test_json(run):
    result = run(Pen().write("a1 a2").poll("a2 a1"), "--promise", "at_least_once", "--json")
    document = json.loads(result.output)
    assert result.exit_code == FOUND_EXIT_CODE
    assert (document["ok"], document["events"], document["bad_lines"]) == (False, 3, [])
    assert document["unexplained"] == {"int-nonmonotonic-send": 1}
    assert document["findings"][0]["events"][0]["kind"] == "write"


def test_a_line_that_cannot_be_read_fails_the_whole(run):
    result = run(Pen().write("a1").poll("a1"), "--promise", "at_least_once", line="{\x1b[31m\n")
    assert result.exit_code == FOUND_EXIT_CODE
    assert "h.jsonl:4" in result.output
    assert "\x1b" not in result.output


@pytest.mark.parametrize("pen", [Pen(), Pen().term("first")], ids=["no event", "no record"])
def test_a_history_without_records_proves_nothing(run, pen):
    result = run(pen, "--promise", "at_least_once")
    assert isinstance(result.exception, NothingChecked)
    assert result.exception.exit_code == 10
    assert "0 records" in str(result.exception)
    assert "guarantee holds" not in result.output
    assert json.loads(run(pen, "--promise", "at_least_once", "--json").output)["ok"] is False
    allowed = run(pen, "--promise", "at_least_once", "--json", "--allow-empty")
    assert allowed.exit_code == 0
    assert json.loads(allowed.output)["records"] == 0


def test_what_was_written_and_read_by_nobody_is_no_kept_promise(run):
    assert run(Pen().write("a1"), "--promise", "at_least_once").exit_code == FOUND_EXIT_CODE


def test_the_audit_of_topics_asks_for_topics():
    result = CliRunner().invoke(app, ["audit"])
    assert result.exit_code == 2
    assert "--topic" in result.output
