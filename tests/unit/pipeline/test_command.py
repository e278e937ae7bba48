"""`harvest pipeline`, as an operator uses it: from JSON lines into JSON lines."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
from support.pipelines import Running
from support.waiting import eventually
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.errors import ConfigError, LogError, PipelineError
from harvest_lib.pipeline.declaration import load

pytestmark = pytest.mark.quick

DECLARED = """\
folder: folder
commit_log: {{segment_size: 4096B, compact_every: 0s}}
reader: {{adaptor: file, path: {folder}/in.jsonl, content: data, namespace: flights, follow: {follow}}}
writers:
  plain: {{adaptor: file, path: "{folder}/plain.jsonl"}}
  checked:
    adaptor: file
    path: {folder}/checked.jsonl
    transforms:
      - call: checks_of_this_test:whole
"""
CHECK = """
def whole(message):
    if message.data.get("dest") is None and message.op.value == 0:
        raise ValueError("it goes nowhere")
    return message
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "checks_of_this_test", raising=False)
    monkeypatch.setattr("harvest_lib.cli.log_output.configure_logging", lambda *_: None)
    monkeypatch.setattr("harvest_lib.cli.terminal.signal", SimpleNamespace(signal=lambda *_: None))
    (tmp_path / "checks_of_this_test.py").write_text(CHECK)
    rows = [{"id": number, "dest": None if number == 3 else "IAH"} for number in range(6)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "flights.yaml").write_text(DECLARED.format(folder=tmp_path, follow="false"))
    return tmp_path


@pytest.fixture
def harvest(place):
    def command(*arguments, raises=None):
        file = [] if arguments[0] == "check" else ["-f", str(place / "flights.yaml")]
        done = CliRunner().invoke(app, ["pipeline", *arguments, *file])
        if raises is not None:
            assert isinstance(done.exception, raises), done.output
            return str(done.exception)
        assert done.exit_code == 0, done.output + repr(done.exception)
        return done.output

    return command


def test_a_declaration_is_checked_by_its_name_alone_or_as_by_the_other_commands(place):
    def check(*arguments):
        return CliRunner().invoke(app, ["pipeline", "check", *arguments])

    file = str(place / "flights.yaml")
    explained = check(file)
    assert explained.exit_code == 0, explained.output
    assert "checked" in explained.stdout
    for arguments in (["-f", file], ["--file", file]):
        assert check(*arguments).stdout == explained.stdout
    for arguments in ([], [file, "-f", file]):
        refused = check(*arguments)
        assert refused.exit_code == 2
        assert "name the file, once" in refused.output


def ids(file):
    return [json.loads(line)["data"]["id"] for line in file.read_text().splitlines()]


def test_an_operator_resolves_a_message_that_a_writer_cannot_be_sent(harvest, place):
    reported = harvest("run", raises=PipelineError)
    (offset,) = re.search(r"failed at offset (\d+)", reported).groups()
    assert "it goes nowhere" in reported
    assert ids(place / "plain.jsonl") == [0, 1, 2, 3, 4, 5]
    assert ids(place / "checked.jsonl") == [0, 1, 2]
    (plain, checked) = json.loads(harvest("status", "--json"))["writers"]
    assert plain["behind"] == 0
    assert checked["next"] == int(offset)
    assert "checked" in harvest("status")
    assert '"id":3' in harvest("show", offset)
    assert json.loads(harvest("show", f"{offset}..{offset}", "--json"))["data"] == {"id": 3, "dest": None}
    assert "failed at offset" in harvest("resume", "--step", raises=PipelineError)
    assert "failed at offset" in harvest("resume", raises=PipelineError)
    harvest("ack", offset, "--without-sending", "--writer", "checked")
    stepped = harvest("resume", "--step", "--writer", "checked")
    assert f"sent {int(offset) + 1} sync insert flights" in stepped
    with (place / "in.jsonl").open("a") as file:
        file.write('{"id": 6, "dest": "JFK"}\n')
    harvest("resume")
    assert ids(place / "checked.jsonl") == [0, 1, 2, 4, 5]
    assert ids(place / "plain.jsonl") == [0, 1, 2, 3, 4, 5], "the reader did not start"
    assert "nothing to send" in harvest("resume", "--step")
    harvest("compact")
    harvest("run")
    assert ids(place / "checked.jsonl") == [0, 1, 2, 4, 5, 6]


def test_a_declaration_is_checked_and_drawn(harvest, place):
    drawn = harvest("check", str(place / "flights.yaml"))
    assert "file ─► commit log ─┬─► everything ─► file (plain)" in drawn
    assert "└─► everything ─► checks_of_this_test:whole ─► file (checked)" in drawn
    (place / "flights.yaml").write_text("folder: folder\nreader: {adaptor: fiel}\nwriters: {a: {adaptor: file}}\n")
    reported = harvest("check", str(place / "flights.yaml"), raises=ConfigError)
    assert "there is no adaptor 'fiel'" in reported
    assert "line 2" in reported


def test_looking_is_possible_while_it_runs_and_nothing_else(harvest, place):
    (place / "checks_of_this_test.py").write_text("def whole(message):\n    return message\n")
    (place / "flights.yaml").write_text(DECLARED.format(folder=place, follow="true"))
    running = Running(load(place / "flights.yaml"))
    eventually(lambda: (place / "plain.jsonl").exists() and len(ids(place / "plain.jsonl")) == 6)
    assert json.loads(harvest("status", "--json"))["end"] >= 6
    assert '"id":0' in harvest("show", "0..100")
    for command in (["compact"], ["resume", "--step"], ["ack", "0", "--without-sending", "--writer", "plain"], ["run"]):
        assert "another process" in harvest(*command, raises=LogError)
    running.stop()
    assert running.failure is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ack", "1"], "--without-sending"),
        (["ack", "-1", "--without-sending"], "-1"),
        (["show", "9-15"], "9..15"),
        (["show", "15..9"], "first"),
        (["resume", "--writer", "plain"], "--step"),
    ],
)
def test_what_is_off_on_the_command_line_is_told(place, arguments, message):
    done = CliRunner().invoke(app, ["pipeline", *arguments, "-f", str(place / "flights.yaml")])
    assert done.exit_code == 2
    assert message in done.output


def test_what_was_done_is_told_in_words(harvest, place):
    assert "the commit log is empty; the next message gets 0" in harvest("status")
    harvest("run", raises=PipelineError)
    end = json.loads(harvest("status", "--json"))["end"]
    assert f"the commit log has offsets 0 to {end - 1}; the next message gets {end}" in harvest("status")
    assert harvest("compact") == "0 segments of the commit log compacted, 0 bytes freed; offsets compacted\n"
    with pytest.raises(AssertionError, match=r"plain: nothing to send; next is offset \d+, 0 behind"):
        harvest("resume", "--step")  # the first writer's outcome is printed, though the second's is an error
    (place / "flights.yaml").write_text(DECLARED.format(folder=place, follow="false").partition("  checked:")[0])
    assert "checked is not declared: the log is kept for it from 3 on" in " ".join(harvest("status").split())
    assert json.loads(harvest("status", "--json"))["undeclared"] == [{"writer": "checked", "next": 3}]


def test_offsets_that_are_gone_or_never_were_are_told(harvest, place):
    (place / "checks_of_this_test.py").write_text("def whole(message):\n    return message\n")
    (place / "in.jsonl").write_text("".join(json.dumps({"id": number}) + "\n" for number in range(200)))
    harvest("run")
    assert re.match(r"[1-9] segments of the commit log compacted, [1-9],\d{3} bytes freed", harvest("compact"))
    assert "they were compacted or skipped" in harvest("show", "0..3")
    (place / "folder" / "commit").rename(place / "lost")
    assert "plain has acknowledged more than the log has" in harvest("status")
    (place / "lost").rename(place / "folder" / "commit")
    reported = harvest("show", "5000", raises=PipelineError)
    assert "the log has no offset 5000 yet" in reported
    assert "the next message gets offset 20" in reported


def test_what_cannot_be_is_told(harvest):
    for command in (["show", "0"], ["resume", "--step"], ["compact"], ["ack", "0", "--without-sending"]):
        assert "has no commit log yet" in harvest(*command, raises=PipelineError)
    assert json.loads(harvest("status", "--json"))["end"] == 0
    harvest("run", raises=PipelineError)
    assert "there are several writers" in harvest("ack", "3", "--without-sending", raises=PipelineError)
    assert "has no writer `nobody`" in harvest("ack", "3", "--without-sending", "-w", "nobody", raises=PipelineError)
    assert "waits for no message" in harvest("ack", "0", "--without-sending", "-w", "plain", raises=PipelineError)
