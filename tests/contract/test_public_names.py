"""No public name changes by accident: commands, settings, errors, imports, Dagster and Airflow definitions.

`public_names.txt` lists them, one a line. A restructuring leaves it alone; a change of a name on purpose writes it
again (the failure says how), and its diff shows what users will notice. Names that take servers to see (tables,
checkpoints, headers, topics) are in `test_public_formats.py`.
"""

import argparse
import ast
import importlib
import importlib.util
import os
import re
import tomllib
from importlib.metadata import distribution, entry_points
from pathlib import Path
from typing import get_args

import pytest
import typer
import yaml
from pydantic import BaseModel
from support.public_list import check_lines

from dagster_harvest.components import OutboxComponent, outbox_definitions
from dagster_harvest.example_flights.definitions import defs
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings

# All that is imported from inside the packages, so that it can follow when modules move.
from harvest_lib.airflow.provider import get_provider_info
from harvest_lib.cli import app as command_line
from harvest_lib.config import ColumnMapping, HarvestConfig, load
from harvest_lib.pipeline import adaptors
from harvest_lib.pipeline.settings import PipelineSettings, WriterSettings
from harvest_lib.pipeline.transforms.loading import READY

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).parent / "public_names.txt"
PACKAGES = ("harvest_lib", "dagster_harvest")
PUBLIC_MODULES = ("harvest_lib", "harvest_lib.consume", "harvest_lib.audit", *PACKAGES[1:])
SPARK_MODULES = ("audit", "flights.by_day", "flights.by_month", "outbox_sink")

COLUMNS = """
create_time: made_at
headers: {trace: trace_id}
id: position
transaction_id: written_by
kafka_topic: {value: orders}
kafka_key: key
kafka_value: payload
"""
"""A table of another layout, as `columns` has it."""

SHOP = """
name: shop
table: sales.outbox
topics: [orders, refunds]
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in [each for each in os.environ if each.startswith("HARVEST_") and each != "HARVEST_HOME"]:
        monkeypatch.delenv(name)


def keys(model, under=""):
    """Return the keys of a model as files have them, those of models inside it too."""
    found = []
    for name, field in model.model_fields.items():
        key = f"{under}{field.serialization_alias or field.alias or name}"
        found.append(key)
        for each in (field.annotation, *get_args(field.annotation)):
            if isinstance(each, type) and issubclass(each, BaseModel):
                found += keys(each, f"{key}.")
    return found


def commands(command, path):
    """Return each command with its arguments, options and variables."""
    spelled = [f"{'/'.join([*each.opts, *each.secondary_opts])} {each.envvar or ''}".strip() for each in command.params]
    found = [path, *(f"{path} {each}" for each in spelled)]
    for name, each in getattr(command, "commands", {}).items():
        found += commands(each, f"{path} {name}")
    return found


class Seen(BaseException):
    """The parser that a command line made."""


def spark_options(name, monkeypatch):
    def seen(parser, *_):
        raise Seen(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", seen)
    module = "audit.__main__" if name == "audit" else name
    main = importlib.import_module(f"harvest_lib.spark.{module}").main
    with pytest.raises(Seen) as parsed:
        main([])
    options = ["/".join(each.option_strings) or each.dest for each in parsed.value.args[0]._actions]
    return [f"python -m harvest_lib.spark.{name} {each}" for each in options]


def trees(*packages):
    files = sorted(each for package in packages for each in (ROOT / package).rglob("*.py"))
    return [ast.parse(each.read_text(encoding="utf-8")) for each in files]


def errors():
    """Return every error of ours, loaded or not, and its exit code, which it may have from its base."""
    nodes = (node for tree in trees(*PACKAGES) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    bases, codes = {}, {"HarvestError": 1}
    for node in nodes:
        bases[node.name] = next((base.id for base in node.bases if isinstance(base, ast.Name)), "object")
        for each in node.body:
            target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
            if target is not None and ast.unparse(target) == "exit_code":
                codes[node.name] = ast.literal_eval(each.value)
    for name in bases:
        line = [name]
        while line[-1] in bases and line[-1] != "HarvestError":
            line.append(bases[line[-1]])
        if line[-1] == "HarvestError":
            yield f"{name} exits with {next(codes[each] for each in line if each in codes)}"


def texts(pattern, *packages):
    """Return every text in the code that is a name of this form."""
    nodes = (node for tree in trees(*packages) for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {each.value for each in nodes if isinstance(each.value, str) and re.fullmatch(pattern, each.value)}


def defined(of, definitions):
    graph, repository = definitions.resolve_asset_graph(), definitions.get_repository_def()
    yield from (f"{of} asset {key.to_user_string()}" for key in graph.get_all_asset_keys())
    yield from (f"{of} check {key.asset_key.to_user_string()}: {key.name}" for key in graph.asset_check_keys)
    yield from (f"{of} job {each.name}" for each in repository.get_all_jobs() if not each.name.startswith("__"))
    yield from (f"{of} schedule {each.name}" for each in repository.schedule_defs)
    yield from (f"{of} sensor {each.name}" for each in repository.sensor_defs)
    yield from (f"{of} resource {each}" for each in definitions.resources or ())


def airflow():
    """DAGs with their parameters, tasks, operators with their arguments, connections and callables named by text; by
    the text of the modules: to import them takes long, and leaves files in the home folder."""
    for node in (each for tree in trees("airflow_dags", "harvest_lib/airflow") for each in ast.walk(tree)):
        if isinstance(node, ast.Call):
            given = {each.arg: each.value for each in node.keywords}
            if isinstance(given.get("dag_id"), ast.Constant):
                dag = f"dag {ast.literal_eval(given['dag_id'])}"
                parameters = map(ast.literal_eval, given["params"].keys) if "params" in given else ()
                yield from (dag, *(f"{dag} parameter {each}" for each in parameters))
            if "task_id" in given:
                yield f"task {ast.literal_eval(given['task_id'])}"
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "BaseOperator" for base in node.bases):
            (made,) = (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
            yield from (f"{node.name} {each.arg}" for each in made.args.kwonlyargs)
    for each in get_provider_info()["connection-types"]:
        yield from (f"connection {each['connection-type']} {field}" for field in each["conn-fields"])
    names = r"dagster_default|harvest_kafka\w*|harvest_lib\.airflow\.\w+\.\w+"
    called = texts(names, "airflow_dags", "harvest_lib/airflow")
    yield from (f"connection or callable {each}" for each in called)


def test_commands(monkeypatch):
    found = commands(typer.main.get_command(command_line), "harvest")
    for name in ("bank_transfer", "flight_counts", "order_totals"):
        app = typer.Typer()
        app.command()(importlib.import_module(f"harvest_lib.examples.{name}").main)
        found += commands(typer.main.get_command(app), f"python -m harvest_lib.examples.{name}")
    found += [each for name in SPARK_MODULES for each in spark_options(name, monkeypatch)]
    check_lines(LIST, "command", found)


@pytest.mark.parametrize("name", ["harvest_lib.cli", "dagster_harvest.pipes_main"])
def test_modules_that_are_run(name):
    spec = importlib.util.find_spec(name)
    file = Path(spec.origin).with_name("__main__.py") if spec.submodule_search_locations else Path(spec.origin)
    assert "main()" in file.read_text(encoding="utf-8"), f"`python -m {name}` is in the documents"


def test_configuration():
    defaults = HarvestConfig(leader_group_id="pool", name="here").redacted()
    values = [*defaults.items(), *((f"limits.{name}", each) for name, each in dict(defaults["limits"]).items())]
    found = [f"{name} is by default {each!r}" for name, each in values if name != "limits"]
    check_lines(LIST, "configuration", [*keys(HarvestConfig), *found])


def test_keys_are_accepted(tmp_path):
    """The reader of files takes every key, in the spelling that the list has, and those of goharvest's file."""
    reported = HarvestConfig(leader_group_id="pool", name="here").redacted()
    plain = {name: each for name, each in reported.items() if name not in {"dataSource", "columns"}}
    plain |= {name: dict(plain[name]) for name in ("baseKafkaConfig", "producerKafkaConfig", "limits")}
    assert {*plain, "dataSource", "columns"} == {key for key in keys(HarvestConfig) if "." not in key}
    assert ColumnMapping.model_validate(yaml.safe_load(COLUMNS))
    file = tmp_path / "reaper.yaml"
    file.write_text(yaml.safe_dump({"harvest": {**plain, "dataSource": "host=db", "columns": yaml.safe_load(COLUMNS)}}))
    load(file)
    file.write_text(
        yaml.safe_dump(
            {"harvest": {"leaderGroupID": "p", "limits": {"receiveDeadline": "4s"}}, "logging": {"level": "Warn"}}
        )
    )
    loaded = load(file)
    assert (loaded.harvest.limits.heartbeat_timeout_seconds, loaded.logging_level) == (4, "warning")


def test_pipelines():
    found = [*keys(PipelineSettings), *(f"writer {each}" for each in keys(WriterSettings))]
    found += [f"transform {each}" for each in (*READY, "call", "with")]
    for name in adaptors.names():
        adaptor = adaptors.find(name)
        for side, role in (("reader", adaptor.reads), ("writer", adaptor.writes)):
            found += [f"{name} {side} {each}" for each in keys(role.options)] if role is not None else []
    check_lines(LIST, "pipeline", found)


def test_environment_variables():
    check_lines(
        LIST, "variable", texts(r"(HARVEST|DAGSTER|AIRFLOW_CONN)_[A-Z_]+[A-Z]", *PACKAGES, "airflow_dags", "infra")
    )


def test_errors_and_exit_codes():
    check_lines(LIST, "error", errors())


def test_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [(group, name) for group, each in project["entry-points"].items() for name in each]
    for group, _ in named:
        for each in entry_points(group=group):
            each.load()
    installed = {each.name for each in distribution(project["name"]).entry_points}
    assert installed >= {*project["scripts"], *(name for _, name in named)}
    found = [f"extra {each}" for each in project["optional-dependencies"]]
    check_lines(LIST, project["name"], [*found, *(f"entry point {group} {name}" for group, name in named)])


def test_importable_names():
    modules = {name: importlib.import_module(name) for name in PUBLIC_MODULES}
    found = [f"{name}.{each}" for name, module in modules.items() for each in getattr(module, "__all__", ())]
    check_lines(LIST, "import", found)
    assert all(hasattr(module, each) for module in modules.values() for each in getattr(module, "__all__", ()))


def test_dagster():
    found = [*defined("the example's", defs())]
    found += defined("an outbox's", outbox_definitions(OutboxComponent.resolve_from_yaml(SHOP)))
    found += [f"attribute {each}" for each in keys(OutboxSettings)]
    found += [f"HarvesterResource {each}" for each in keys(HarvesterResource)]
    found += [f"tag {each}" for each in texts(r"(harvest|airflow|dagster)/[a-z_]+", *PACKAGES, "infra")]
    check_lines(LIST, "dagster", [*found, f"component {OutboxComponent.__module__}.{OutboxComponent.__qualname__}"])


def test_airflow():
    found = {*airflow()}
    assert sum(bool(re.fullmatch(r"dag \w+", each)) for each in found) >= 5
    check_lines(LIST, "airflow", found)
