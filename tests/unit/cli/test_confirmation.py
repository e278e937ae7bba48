"""Commands that destroy something ask on a terminal, and need --yes elsewhere."""

import io
import shlex
import sys
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from types import SimpleNamespace

import pytest
from typer.main import get_command

from harvest_lib import cli
from harvest_lib.cli import park, segments, stack, subscriptions
from harvest_lib.subscriptions.backlog import Backlog

pytestmark = pytest.mark.quick

COMMANDS = get_command(cli.app)
DESTROYING = {
    "subscriptions remove audit": "Remove audit, with 3 records not delivered?",
    "subscriptions rewind audit --to now": "Skip 3 records that audit has not delivered?",
    "subscriptions rewind audit --to 7:9:7": "Move audit to 7:9:7? It has not delivered 3 records",
    "park drop --all": "Delete 2 parked records permanently?",
    "segments drop --keep 0s": "Drop permanently: outbox_from_0, outbox_from_10?",
    "pipeline skip 4 -f flights.yaml": "Give up the unreadable messages at offset 4 permanently, for every writer?",
    "up --fresh": "Remove the data of earlier runs in",
}
every_one = pytest.mark.parametrize("line", DESTROYING)


class Terminal(io.StringIO):
    """Standard input of a person, who has typed the answers already."""

    def isatty(self):
        return True


@pytest.fixture
def done(monkeypatch, tmp_path):
    """Calls of the commands on servers; no server is there."""
    done = []

    class Subscriptions:
        def get(self, _name):
            return [SimpleNamespace(checkpoint=None)]

        def lag(self, _shard):
            return Backlog(records=3, is_estimate=False, oldest_age_seconds=1.0)

        def shards(self):
            return []

        def remove(self, name, *, force):
            done.append(f"removed {name}{' by force' if force else ''}")
            return self.get(name)

        def rewind(self, name, *, to, source):
            done.append(f"rewound {name}")
            return SimpleNamespace(to=to, source=source, is_led=False, warnings=[])

    class Parked:
        def counts(self, *_):
            return SimpleNamespace(parked=2, held=1)

        def drop(self, *_):
            done.append("dropped")
            return SimpleNamespace(dropped=2, released=1)

    def drop_passed(*_, dry_run, **__):
        if not dry_run:
            done.append("dropped")
        return SimpleNamespace(
            dropped=["outbox_from_0", "outbox_from_10"], kept="", because="", held_segments=0, held_bytes=0
        )

    def skip_damage(*_):
        done.append("skipped")
        return SimpleNamespace(given_up=range(4, 5), unchecked=range(0))

    def opened(*found):
        return lambda *_, **__: nullcontext(found)

    monkeypatch.setattr(subscriptions, "_open_subscriptions", opened(Subscriptions(), None))
    monkeypatch.setattr(park, "_open_parked", opened(Parked(), None, None))
    monkeypatch.setattr(segments, "_open_native", opened(SimpleNamespace(keep_segments_seconds=1.0), None, None))
    monkeypatch.setattr("harvest_lib.outbox.segments.drop_passed", drop_passed)
    monkeypatch.setattr("harvest_lib.pipeline.declaration.load", lambda _: None)
    monkeypatch.setattr("harvest_lib.pipeline.operations.skip_damage", skip_damage)
    monkeypatch.setattr(stack, "show", lambda *_, **__: None)
    local = stack.local_stack
    supervisor = SimpleNamespace(up=lambda *_: (done.append("wiped"), False))
    monkeypatch.setattr(stack, "local_stack", lambda name: supervisor if name == "supervisor" else local(name))
    (tmp_path / "postgres-18").mkdir()
    monkeypatch.setenv("HARVEST_HOME", str(tmp_path))
    monkeypatch.delenv("HARVEST_CONFIG", raising=False)
    return done


@pytest.fixture
def harvest(monkeypatch, done):
    def run(line, answer=None):
        monkeypatch.setattr(sys, "stdin", io.StringIO() if answer is None else Terminal(f"{answer}\n"))
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            COMMANDS.main(shlex.split(line))
        return ended.value.code, out.getvalue() + err.getvalue()

    return run


@every_one
def test_without_a_terminal_the_line_to_type_is_named(line, harvest, done):
    code, said = harvest(line)
    assert (code, done) == (2, [])
    assert said == (
        "error: the command needs a confirmation\n"
        "  evidence: there is no terminal to ask, and no --yes\n"
        f"  next step: write: harvest {line} --yes\n"
    )


@every_one
@pytest.mark.parametrize("option", ["--yes", "-y"])
def test_yes_answers_without_a_question(line, option, harvest, done):
    code, said = harvest(f"{line} {option}")
    assert (code, len(done)) == (0, 1), said
    assert "?" not in said


@every_one
@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_a_person_is_asked_and_only_yes_goes_on(line, answer, harvest, done):
    code, said = harvest(line, answer)
    assert DESTROYING[line] in said
    if answer == "y":
        assert (code, len(done)) == (0, 1), said
    else:
        assert (code, done) == (1, []), said
        assert said.endswith("stopped: nothing was changed\n")


@pytest.mark.parametrize("line", [line for line in DESTROYING if line.split()[0] not in {"pipeline", "up"}])
def test_a_dry_run_says_what_would_be_done_and_needs_no_answer(line, harvest, done):
    code, said = harvest(f"{line} --dry-run")
    assert (code, done) == (0, []), said
    assert "would " in said


def test_what_destroys_nothing_asks_nothing(harvest, done, tmp_path):
    assert harvest("subscriptions rewind audit --to beginning")[0] == 0
    (tmp_path / "postgres-18").rmdir()
    assert harvest("up --fresh")[0] == 0
    (tmp_path / "postgres-18").mkdir()
    assert harvest("up")[0] == 0
    assert done == ["rewound audit", "wiped", "wiped"]


def test_without_segments_to_drop_nobody_is_asked(harvest, done, monkeypatch):
    def nothing(*_, dry_run, **__):
        done.append("looked" if dry_run else "closed")
        return SimpleNamespace(dropped=[], kept="", because="", held_segments=0, held_bytes=0)

    monkeypatch.setattr("harvest_lib.outbox.segments.drop_passed", nothing)
    assert harvest("segments drop", "n") == (0, "")
    assert done == ["looked", "closed"]


def test_the_line_is_quoted_for_a_shell(harvest):
    assert "next step: write: harvest park drop --key 'a b' --yes\n" in harvest("park drop --key 'a b'")[1]
