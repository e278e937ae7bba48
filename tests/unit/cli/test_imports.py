"""Help is quick: it loads neither clients nor the configuration. Every command is covered."""

import json
import subprocess
import sys
from typing import get_args

import confluent_kafka
import psycopg
import pytest
import typer
from typer.main import get_command

import harvest_lib
from harvest_lib import cli
from harvest_lib.audit.kafka_log import Isolation
from harvest_lib.cli import options
from harvest_lib.config import HarvestConfig
from harvest_lib.local_stack import kafka, postgres
from harvest_lib.native import implementation
from harvest_lib.outbox import native_table
from harvest_lib.subscriptions.starting_points import SOURCES
from infra.chaos.checker import promise
from infra.cli.history import PromiseName

pytestmark = pytest.mark.gate

HEAVY = {
    *("confluent_kafka", "psycopg", "psycopg_binary", "pydantic", "pydantic_core", "pydantic_settings", "structlog"),
    *("yaml", "re2", "psutil", "pyarrow", "pyspark", "dagster", "airflow", "rich"),
}
LIGHT_OF_OURS = {
    *("harvest_lib", "harvest_lib.errors", "harvest_lib.events"),
    *("harvest_lib.process", "harvest_lib.process.logging_levels"),
    *(f"harvest_lib.record{module}" for module in ("", ".header", ".outbox_record", ".row")),
}
OF_RUNNING_COMMANDS = {f"harvest_lib.cli.{module}" for module in ("tables", "shards", "log_output", "status_line")}

SHOW_EVERY_HELP = """
import json, sys
from typer.main import get_command
from typer.testing import CliRunner
from harvest_lib.cli import app

def commands(command, path):
    yield path
    for name, member in getattr(command, "commands", {}).items():
        yield from commands(member, [*path, name])

shown = {}
for path in commands(get_command(app), []):
    done = CliRunner().invoke(app, [*path, "--help"])
    assert done.exit_code == 0, done.output
    shown[" ".join(path)] = done.output, sorted(sys.modules)
print(json.dumps(shown))
"""
"""Loads every module of `harvest_lib.cli`, as each call of `harvest` does."""

RUN = """
import json, sys
from harvest_lib.cli import main
sys.argv = ["harvest", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""


def output(script, *arguments):
    done = subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def unwanted(modules):
    ours = {name for name in modules if name.startswith("harvest_lib") and not name.startswith("harvest_lib.cli")}
    return ((HEAVY | OF_RUNNING_COMMANDS) & set(modules)) | (ours - LIGHT_OF_OURS)


@pytest.fixture(scope="module")
def shown():
    """By command, its help and the modules that are loaded then."""
    return json.loads(output(SHOW_EVERY_HELP)[-1])


@pytest.mark.full
def test_the_help_of_no_command_loads_what_it_does_not_use(shown):
    assert len(shown) > 40
    assert {"", "status", "history", "grants consumer kafka"} <= shown.keys()
    assert {command: found for command, (_, modules) in shown.items() if (found := unwanted(modules))} == {}


def test_every_command_has_an_example(shown):
    groups = {name.rpartition(" ")[0] for name in shown}
    commands = {name: text for name, (text, _) in shown.items() if name not in groups}
    assert len(commands) > 40
    assert [name for name, text in commands.items() if text.count(f"harvest {name}") < 2] == [], "beside its usage"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["status", "--help"], ["history", "--help"], ["run", "--no-such-option"]],
    ids=" ".join,
)
def test_a_process_that_only_tells_about_commands_loads_no_more(arguments):
    assert unwanted(json.loads(output(RUN, *arguments)[-1])) == set()


def test_the_version_loads_the_clients_and_no_tables():
    *said, modules = output(RUN, "version")
    assert "rich.table" not in json.loads(modules)
    assert "pydantic" not in json.loads(modules)
    libpq = psycopg.pq.version_pretty(psycopg.pq.version())
    assert said[1] == f"librdkafka {confluent_kafka.libversion()[0]}, libpq {libpq}"
    assert said[2] == f"hand-over: {implementation().name} ({implementation().reason})"


def test_options_repeat_what_the_library_says():
    assert options.DEFAULT_SEGMENT_SIZE == native_table.DEFAULT_SEGMENT_SIZE
    assert options.DEFAULT_AHEAD == native_table.DEFAULT_AHEAD
    assert get_args(options.ColumnType) == get_args(native_table.ColumnType)
    assert get_args(options.Isolation) == get_args(Isolation)
    assert get_args(options.ReadingSource) == SOURCES
    assert {*get_args(options.PostgresVersion)} == {*postgres.VERSIONS}
    assert {*get_args(options.KafkaVersion)} == {*kafka.VERSIONS}
    assert get_args(PromiseName) == get_args(promise.Delivery)
    sources = get_args(HarvestConfig.model_fields["source"].annotation)
    assert {*get_args(options.Source), "auto"} == {*sources}


def test_the_library_itself_loads_a_name_at_its_first_use():
    script = "import json, sys, harvest_lib; print(json.dumps(sorted(sys.modules)))"
    assert unwanted(json.loads(output(script)[-1])) == set()
    for name in set(harvest_lib.__all__) - {"__version__"}:
        assert getattr(harvest_lib, name).__name__ == name if name != "Event" else getattr(harvest_lib, name)
    assert {*harvest_lib.__all__} <= {*dir(harvest_lib)}
    with pytest.raises(AttributeError, match="no attribute 'Harvester'"):
        harvest_lib.Harvester  # noqa: B018 - asked for


def test_submodules_are_there_after_importing_the_library_alone():
    assert output("import harvest_lib; print(harvest_lib.config.load.__name__)") == ["load"]


def test_completion_of_a_command_of_a_clone_ends_without_a_traceback():
    command = get_command(cli.app)
    command.commands = {name: each for name, each in command.commands.items() if name != "bench"}
    context = typer.Context(command, resilient_parsing=True)
    assert command.resolve_command(context, ["bench"])[1] is None
