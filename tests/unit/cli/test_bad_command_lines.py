"""Bad command lines: no traceback, the right exit code, a next step, and no connection for what arguments show."""

import io
import os
import shlex
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
from typer.main import get_command

from harvest_lib import cli

pytestmark = pytest.mark.quick

COMMANDS = get_command(cli.app)
"""The commands, which `app` would make again for each call."""
NOWHERE = "host=127.0.0.1 port=1 dbname=none"
USAGE, CONFIGURATION, POSTGRES, LOCAL_STACK = 2, 3, 5, 7
PIPELINE = "folder: log\nreader: {adaptor: file, path: in.jsonl}\nwriters: {one: {adaptor: file, path: out.jsonl}}\n"

BAD = [
    # what typer finds
    ("runn", USAGE, "did you mean run?"),
    ("nothing", USAGE, "has no command 'nothing'"),
    ("park lst", USAGE, "did you mean list?"),
    ("grants consumer postgers", USAGE, "did you mean postgres?"),
    ("run --drian", USAGE, "did you mean --drain?"),
    ("run --no-such-option", USAGE, "has no option --no-such-option"),
    ("--no-such-option run", USAGE, "has no option --no-such-option"),
    ("run extra", USAGE, "too many arguments"),
    ("run --drain=3", USAGE, "--drain takes no value"),
    ("run -f", USAGE, "-f needs a value"),
    ("run --log-level loud", USAGE, "choose one of"),
    ("run --log-format xml", USAGE, "choose one of console, json"),
    ("pump --keys 1", USAGE, "--records is missing"),
    ("pump --keys one --records 1", USAGE, "--keys must be a whole number"),
    ("pump --keys 0 --records 1", USAGE, "--keys 0 is less than 1"),
    ("pump --keys 1 --records 1 --headers 2000", USAGE, "--headers 2000 is more than 1000"),
    ("park show", USAGE, "write: harvest park show ID [OPTIONS]"),
    ("park show first", USAGE, "ID must be a whole number"),
    ("init --value-type varchr", USAGE, "did you mean varchar?"),
    ("audit -t orders --spill /no/such/folder", USAGE, "--spill"),
    ("subscriptions add", USAGE, "NAME is missing"),
    ("subscriptions rewind audit", USAGE, "--to is missing"),
    ("subscriptions reshard audit --shards 0", USAGE, "--shards 0 is less than 1"),
    ("subscriptions add audit --source mark", USAGE, "choose one of snapshot, transaction_id"),
    # what the arguments show
    ("subscriptions add 'bad name'", USAGE, "cannot name a subscription"),
    ("subscriptions add audit --from tomorrow", USAGE, "--from 'tomorrow' is no position"),
    ("subscriptions add audit --topic 'no such'", USAGE, "cannot name a topic"),
    ("subscriptions add audit --topic orders,", USAGE, "cannot name a topic"),
    ("subscriptions remove 'bad name'", USAGE, "cannot name a subscription"),
    ("subscriptions rewind audit --to yesterday", USAGE, "--to 'yesterday' is no position"),
    ("subscriptions rewind audit --to 7:8", USAGE, "7071:7075:7071"),
    ("subscriptions reshard audit --shards 2 --timeout 60", USAGE, "number without a unit"),
    ("segments drop --keep 24", USAGE, "number without a unit"),
    ("segments drop --keep -1h", USAGE, "is negative"),
    ("segments drop --keep soon", USAGE, "is not a duration"),
    ("segments rotate --older-than 5", USAGE, "number without a unit"),
    ("segments rotate --due --older-than 5h", USAGE, "exclude each other"),
    ("segments archive ftp://host/orders", USAGE, "cannot be written by ftp"),
    ("segments archive https://host/orders", USAGE, "cannot be written by https"),
    ("segments archive ''", USAGE, "is empty"),
    ("pump --keys 1 --records 1 --interval 100", USAGE, "number without a unit"),
    ("pump --keys 1 --records 1 --topic 'no such'", USAGE, "--topic"),
    ("pump --keys 1 --records 1 --blank --value-size 3", USAGE, "exclude each other"),
    ("pump --keys 1 --records 1 --table a.b.c", USAGE, "write `table` or `schema.table`"),
    ("init --table a.b.c --print", USAGE, "write `table` or `schema.table`"),
    ("init --table '' --print", USAGE, "write `table` or `schema.table`"),
    ("init --native --goharvest --print", USAGE, "exclude each other"),
    ("init --spark-table a.b.c", USAGE, "--spark-table 'a.b.c'"),
    ("migrate --force", USAGE, "--force needs --restamp"),
    ("migrate --table .outbox", USAGE, "write `table` or `schema.table`"),
    ("grants postgres --allow shop", USAGE, "is not ROLE=TOPIC"),
    ("grants postgres --writer shop --allow store=orders", USAGE, "names no writer"),
    ("grants postgres --writer a --reader a", USAGE, "is used for two parts"),
    ("grants postgres --writer ' '", USAGE, "the name is empty"),
    ("grants postgres --subscription 'bad name'", USAGE, "cannot name a subscription"),
    ("grants postgres --table a.b.c", USAGE, "write `table` or `schema.table`"),
    ("grants kafka", USAGE, "--topic is missing"),
    ("grants kafka --topic 'no such'", USAGE, "cannot name a topic"),
    ("grants kafka --topic orders --harvester User:", USAGE, "the name is empty"),
    ("grants consumer kafka --name c --topic 'a b'", USAGE, "cannot name a topic"),
    ("audit", USAGE, "--topic is missing"),
    ("audit -t 'a/b'", USAGE, "cannot name a topic"),
    ("audit -t orders --metrics-file out.txt", USAGE, "name it out.prom"),
    ("audit -t orders --committed ' '", USAGE, "is empty"),
    ("audit -t orders --committed x --committed-file y", USAGE, "exclude each other"),
    ("audit -t orders --id-header event", USAGE, "not in the outbox"),
    ("audit -t orders,", USAGE, "cannot name a topic"),
    ("park list -t a,,b", USAGE, "cannot name a topic"),
    ("check -t 'a/b'", USAGE, "cannot name a topic"),
    ("partition 'a b' key", USAGE, "cannot name a topic"),
    ("park retry", USAGE, "not clear which records"),
    ("park drop --all 1", USAGE, "not clear which records"),
    ("pipeline check", USAGE, "FILE is missing"),
    ("pipeline show 9-15 -f good.yaml", USAGE, "as in 9..15"),
    ("pipeline show 15..9 -f good.yaml", USAGE, "write 9..15"),
    ("pipeline ack 3 -f good.yaml", USAGE, "--without-sending is missing"),
    ("pipeline resume --writer one -f good.yaml", USAGE, "--writer needs --step"),
    ("up --brokers 2", USAGE, "must be 1 or 3"),
    ("up --postgres 15", USAGE, "choose one of 18, 16"),
    ("up --kafka 2.8", USAGE, "choose one of 4.3.1, 3.9.1"),
    ("chaos --duration 5", USAGE, "number without a unit"),
    ("chaos --brokers 2", USAGE, "must be 1 or 3"),
    ("chaos --faults earthquake", USAGE, "unknown: earthquake"),
    ("bench --only nothing", USAGE, "unknown: nothing"),
    # what the configuration shows
    ("run -f none.yaml", CONFIGURATION, "does not exist"),
    ("run", CONFIGURATION, "name the pool"),
    ("config show -f wrong.yaml", CONFIGURATION, "must be a whole number"),
    ("config new good.yaml", USAGE, "exists already"),
    ("pipeline check empty.yaml", CONFIGURATION, "`folder`"),
    ("pipeline check wrong.yaml", CONFIGURATION, "`folder` is missing"),
    # what only a server shows
    ("subscriptions list", POSTGRES, "Postgres does not answer"),
    ("subscriptions rewind audit --to 7071:7075:7071,7073@12 --yes", POSTGRES, "Postgres does not answer"),
    ("logs none", LOCAL_STACK, "there is no log of none"),
]


@pytest.fixture
def harvest(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(("HARVEST_", "PG"))]:
        monkeypatch.delenv(name)
    for name, text in {"good": PIPELINE, "empty": "{}", "wrong": "shards: many\nsubscription: 'a b'\n"}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARVEST_DSN", NOWHERE)
    monkeypatch.setenv("HARVEST_HOME", str(tmp_path))
    monkeypatch.setattr(cli, "app", COMMANDS)
    monkeypatch.setattr("harvest_lib.cli.terminal.signal.signal", lambda *_: signal.SIG_DFL)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["harvest", *arguments])
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, out.getvalue(), err.getvalue()

    return run


@pytest.mark.parametrize(("line", "code", "said"), BAD, ids=[line for line, *_ in BAD])
def test_a_bad_command_line_ends_with_its_code_and_a_next_step(harvest, line, code, said):
    ended, out, err = harvest(*shlex.split(line))
    assert (ended, out) == (code, ""), err
    assert err.startswith("error: ")
    assert "\n  next step: " in err
    assert said in err
    for text in ("Traceback", "Field required", "Input should be", "unable to parse", "Value error", "goharvest"):
        assert text not in err or text in line
    assert "to be had" not in err


def test_without_arguments_the_help_is_shown(harvest):
    for arguments in ((), ("park",), ("grants", "consumer")):
        code, out, err = harvest(*arguments)
        assert (code, out) == (USAGE, "")
        assert err.startswith("Usage: harvest")


def test_an_error_cannot_move_the_cursor(harvest):
    code, _, err = harvest("subscriptions", "add", "\x1b[2Jaudit\r\udcff")
    assert code == USAGE
    assert "\x1b" not in err
    assert "\\x1b" in err


@pytest.mark.gate
def test_a_refused_start_is_reported_before_the_log_of_librdkafka():
    command = [sys.executable, "-m", "harvest_lib.cli", "run", "--no-status"]
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("HARVEST_", "PG"))}
    nowhere = {"HARVEST_DSN": NOWHERE, "HARVEST_BOOTSTRAP_SERVERS": "127.0.0.1:1", "HARVEST_LEADERSHIP": "solo"}
    done = subprocess.run(command, env=kept | nowhere, capture_output=True, text=True, check=False)
    assert done.returncode == POSTGRES, done.stderr
    assert done.stderr.startswith("ok ")
    assert "rdkafka#" not in done.stderr
    assert "kafka: Kafka at 127.0.0.1:1 does not answer" in done.stderr
