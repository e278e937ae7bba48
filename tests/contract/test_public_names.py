"""No public name changes by accident: commands, settings, DDL, errors, packages, Dagster and Airflow definitions.

`public_names.json` holds them as they were written down. A restructuring leaves it alone; a change of a name on purpose
writes it again (the failure says how), and the diff of the list shows what users will notice. Names that take servers
to see (tables, checkpoints, headers, topics) are in `test_public_formats.py`.
"""

import argparse
import ast
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import json
import os
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from importlib.metadata import distribution, entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import dagster as dg
import pytest
import typer
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings
from support.public_list import check
from typer.testing import CliRunner

# All that is imported from inside the packages, so that it can follow when modules move.
from airflow_dags.provider import get_provider_info
from dagster_harvest.components import OutboxComponent, outbox_definitions
from dagster_harvest.definitions import defs
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings
from harvest_lib.cli import app as command_line
from harvest_lib.config import ColumnMapping, HarvestConfig, Limits, load
from harvest_lib.config.environment import environment_values
from harvest_lib.errors import ConfigError
from harvest_lib.pipeline import adaptors
from harvest_lib.pipeline.message import Mode, Op
from harvest_lib.pipeline.settings import PipelineSettings, WriterSettings
from harvest_lib.pipeline.transforms.loading import READY
from infra.chaos.history.events import KINDS, PolledRecord, WrittenRecord

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).parent / "public_names.json"
PACKAGES = ("harvest_lib", "dagster_harvest", "airflow_dags", "spark_jobs")
PUBLIC_MODULES = ("harvest_lib", "harvest_lib.consume", "harvest_lib.audit", *PACKAGES[1:])

NO_OPTIONS_OF_THEIR_OWN = ("harvest_lib.cli", "dagster_harvest.pipes_main")
RUN_AS_MODULES = (
    *NO_OPTIONS_OF_THEIR_OWN,
    "harvest_lib.examples.bank_transfer",
    "harvest_lib.examples.flight_counts",
    "harvest_lib.examples.order_totals",
    "spark_jobs.audit",
    "spark_jobs.flights_by_day",
    "spark_jobs.flights_to_outbox",
    "spark_jobs.outbox_sink",
)

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


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in [each for each in os.environ if each.startswith("HARVEST_") and each != "HARVEST_HOME"]:
        monkeypatch.delenv(name)


# -- text forms of types, defaults and values


def kind(annotation: Any) -> str:
    """Return the type of a parameter or a setting, without the name of any class of ours."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind(inner[0])
    if origin is Literal:
        return " | ".join(sorted(map(repr, inner)))
    if origin in {Union, types.UnionType}:
        return " | ".join(sorted({kind(each) for each in inner}))
    if annotation in {None, type(None)}:
        return "none"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of {kind(inner[1])}"
    if isinstance(origin, type) and issubclass(origin, Sequence | tuple):
        return f"list of {kind(inner[0])}"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " | ".join(sorted(repr(each.value) for each in annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"settings {', '.join(sorted(annotation.model_fields))}"
    if isinstance(annotation, type) and annotation.__module__ in {"builtins", "pathlib", "datetime", "uuid"}:
        return annotation.__name__
    return "other"


def default_of(field: Any) -> object:
    if field.is_required():
        return "required"
    if field.default_factory is not None or field.default is PydanticUndefined:
        return "computed"
    plain = isinstance(field.default, str | int | float | bool | None)
    return field.default if plain else "object"


def settings(model: type[BaseModel]) -> dict[str, object]:
    """Return the keys of a model as files have them, those of models inside it too."""
    reported: dict[str, object] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        reported[key] = {"takes": kind(field.annotation), "default": default_of(field)}
        inner = field.annotation
        found = [each for each in (inner, *get_args(inner)) if isinstance(each, type) and issubclass(each, BaseModel)]
        for each in found:
            reported |= {f"{key}.{below}": value for below, value in settings(each).items()}
    return reported


def parameters(function: Any) -> list[str]:
    """Return what a function takes: name, whether by name alone, whether it may be left out."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return []
    reported = []
    for name, each in signature.parameters.items():
        if name in {"self", "cls"} or (name.startswith("_") and each.kind is not each.POSITIONAL_ONLY):
            continue
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        named = " by name" if each.kind is each.KEYWORD_ONLY else ""
        place = "(positional)" if each.kind is each.POSITIONAL_ONLY else name
        reported.append(f"{stars}{place}{named}{'' if each.default is each.empty else ' optional'}")
    return reported


def public(value: Any) -> object:
    """Return what users see of something they import."""
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return {"values": {each.name: each.value for each in value}}
    if isinstance(value, type):
        base = next(each for each in (BaseSettings, BaseModel, Exception, object) if issubclass(value, each))
        theirs = {name for name in dir(value) if not name.startswith("_")} - set(dir(base))
        theirs |= {
            name for each in value.__mro__[:-1] for name in getattr(each, "__annotations__", {}) if name[0] != "_"
        }
        if issubclass(value, tuple):
            theirs -= set(dir(tuple))
        members = {}
        for name in sorted(theirs - {"model_fields", "model_config"}):
            member = inspect.getattr_static(value, name, None)
            is_method = isinstance(member, classmethod | staticmethod) or inspect.isfunction(member)
            members[name] = parameters(getattr(value, name)) if is_method else "attribute"
        return {"made with": parameters(value), "members": members}
    if callable(value) and not isinstance(value, types.GenericAlias):
        return {"takes": parameters(value)}
    return "value" if not isinstance(value, set | frozenset | tuple) else sorted(map(str, value))


def trees() -> dict[str, ast.Module]:
    """Return all modules of the packages and of `infra`, parsed."""
    files = sorted(each for package in (*PACKAGES, "infra") for each in (ROOT / package).rglob("*.py"))
    return {str(each.relative_to(ROOT)): ast.parse(each.read_text(encoding="utf-8")) for each in files}


def texts() -> set[str]:
    """Return every text in the code."""
    found = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


# -- the command line


def commands(command: Any, path: str) -> dict[str, object]:
    reported: dict[str, object] = {path: sorted(map(parameter, command.params))}
    for name, each in getattr(command, "commands", {}).items():
        reported |= commands(each, f"{path} {name}")
    return reported


def parameter(each: Any) -> str:
    """Tell an option in one line: all spellings, what it takes, whether it must be there, its variable."""
    spelled = "/".join(filter(None, [" ".join(each.opts), " ".join(each.secondary_opts)]))
    takes = "flag" if getattr(each, "is_flag", False) else kind(each.type_descriptor.annotation)
    limits = [f"{name} {value}" for name in ("min", "max") if (value := getattr(each, name, None)) is not None]
    more = [
        *limits,
        *(["many"] if getattr(each, "multiple", False) or each.nargs != 1 else []),
        "required" if each.required else f"default {shown(each.default)}",
        *([f"variable {each.envvar}"] if each.envvar else []),
        *(["hidden"] if getattr(each, "hidden", False) else []),
    ]
    is_option = each.opts[0].startswith("-")
    return f"{'option' if is_option else 'argument'} {spelled}: {takes}, {', '.join(more)}"


def shown(value: object) -> str:
    if isinstance(value, enum.Enum):
        value = value.value
    return "computed" if callable(value) else repr(value)


def found_commands():
    return commands(typer.main.get_command(command_line), "harvest")


class Seen(BaseException):
    """The parser that a command line made."""


def module_commands(monkeypatch):
    """Return the options of `python -m …`, for each module that the documents run."""

    def seen(parser, *_):
        raise Seen(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", seen)
    return {name: taken(name) for name in RUN_AS_MODULES}


def taken(name: str) -> object:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"`python -m {name}` is in the documents"
    if spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    source = Path(spec.origin).read_text(encoding="utf-8")
    if name in NO_OPTIONS_OF_THEIR_OWN:
        assert "main()" in source
        return "there"
    assert '__name__ == "__main__"' in source
    module = importlib.import_module(spec.name)
    if name.startswith("spark_jobs"):
        with pytest.raises(Seen) as found:
            module.main([])
        return sorted(map(argument, found.value.args[0]._actions))
    app = typer.Typer()
    app.command()(module.main)
    return sorted(map(parameter, typer.main.get_command(app).params))


def argument(action: argparse.Action) -> str:
    spelled = " ".join(action.option_strings) or action.dest
    choices = f" of {sorted(action.choices)}" if action.choices else ""
    many = " many" if type(action).__name__ == "_AppendAction" or action.nargs in {"*", "+"} else ""
    takes = "flag" if action.nargs == 0 else "value"
    return f"{spelled}: {takes}{choices}{many}{' required' if action.required else ''}"


# -- settings


def configuration(tmp_path):
    """Keys of the YAML in goharvest's spelling, the fields of Python, the variables."""

    def keys(model):
        return {
            each.serialization_alias: {"field": name, "takes": kind(each.annotation)}
            for name, each in model.model_fields.items()
        }

    file = tmp_path / "reaper.yaml"
    also = []
    for key in ("receiveDeadline",):
        file.write_text(yaml.safe_dump({"harvest": {"leaderGroupID": "pool", "limits": {key: "4s"}}}))
        if load(file).harvest.limits.heartbeat_timeout_seconds == 4:
            also.append(key)
    file.write_text(yaml.safe_dump({"harvest": {"leaderGroupID": "pool"}, "logging": {"level": "Warn"}}))
    assert load(file).logging_level == "warning"
    fields = [
        *HarvestConfig.model_fields,
        *(f"LIMITS__{name}" for name in Limits.model_fields),
        "BOOTSTRAP_SERVERS",
        "DSN",
    ]
    variables = {}
    for field in fields:
        variable = f"HARVEST_{field.upper()}"
        _, used = environment_values({variable: "{}"}, HarvestConfig.model_fields)
        if used:
            variables[variable] = ".".join(next(iter(used)))
    defaults = HarvestConfig(leader_group_id="pool", name="here").redacted()
    return {
        "harvest": keys(HarvestConfig),
        "harvest.limits": keys(Limits),
        "harvest.limits, also": also,
        "harvest.columns": settings(ColumnMapping),
        "defaults, of leaderGroupID pool": {name: repr(each) for name, each in defaults.items()},
        "variables": variables,
    }


def accepted(tmp_path):
    """Every key is taken by the reader of files, in the spelling that the list has."""
    reported = HarvestConfig(leader_group_id="pool", name="here").redacted()
    plain = {name: each for name, each in reported.items() if name not in {"dataSource", "columns"}}
    plain |= {name: dict(plain[name]) for name in ("baseKafkaConfig", "producerKafkaConfig", "limits")}
    file = tmp_path / "reaper.yaml"
    file.write_text(yaml.safe_dump({"harvest": {**plain, "dataSource": "host=db", "columns": yaml.safe_load(COLUMNS)}}))
    problems = ""
    try:
        load(file)
    except ConfigError as error:
        problems = str(error)
    return {"keys in a file": sorted([*plain, "dataSource", "columns"]), "refused": problems.replace(str(file), "FILE")}


def pipelines():
    """Keys of a pipeline's declaration."""
    reported = {
        "pipeline": settings(PipelineSettings),
        "writers": settings(WriterSettings),
        "transforms": sorted([*READY, "call", "with"]),
        "what was done": {each.name: each.value for each in Op},
        "how far": {each.name: each.value for each in Mode},
    }
    for name in adaptors.names():
        adaptor = adaptors.find(name)
        if adaptor.reads is not None:
            reported[f"adaptor {name}, reader"] = settings(adaptor.reads.options)
        if adaptor.writes is not None:
            reported[f"adaptor {name}, writer"] = settings(adaptor.writes.options)
    return reported


def variables():
    """Every environment variable that the code names as a text of its own."""
    return sorted(each for each in texts() if re.fullmatch(r"(HARVEST|DAGSTER|AIRFLOW_CONN)_[A-Z_]+[A-Z]", each))


# -- SQL and rights, as the commands print them


def printed(tmp_path):
    """Return the statements printed for one's own migrations and administrators, without comments and layout."""
    (tmp_path / "pool.yaml").write_text(
        "leaderGroupID: pool\nsubscription: lake\ndelivery: transactional\nleadership: neli\n"
    )
    (tmp_path / "sequenced.yaml").write_text("leaderGroupID: pool\ndelivery: sequenced\nleadership: neli\nshards: 3\n")
    (tmp_path / "mark.yaml").write_text("leaderGroupID: pool\nsource: mark\n")
    (tmp_path / "auto.yaml").write_text("leaderGroupID: pool\nsource: snapshot\n")
    (tmp_path / "postgres.yaml").write_text(
        "leaderGroupID: pool\nleadership: postgres\nsource: snapshot\ndelivery: barrier\n"
    )
    columns = {"leaderGroupID": "pool", "source": "snapshot", "columns": yaml.safe_load(COLUMNS)}
    (tmp_path / "columns.yaml").write_text(yaml.safe_dump(columns))
    files = ("pool", "sequenced", "mark", "postgres", "columns")
    lines = [
        "init --print --table outbox",
        "init --print --table billing.outbox --value-type bytea --segment-size 1000 --no-checks",
        f"init --print --table {'long' * 12} --value-type text",
        "init --print --table outbox --goharvest",
        "init --print --table outbox --goharvest --checks",
        *(f"init --print -f {tmp_path}/{file}.yaml" for file in files),
        *(f"subscriptions sql -f {tmp_path}/{file}.yaml" for file in ("pool", "columns")),
        *(f"grants postgres -f {tmp_path}/{file}.yaml --source {source}" for file, source in GRANTED),
        *(f"grants kafka -f {tmp_path}/{file}.yaml --topic orders --json" for file in (*files, "auto")),
        "grants consumer postgres --key-values",
        "grants consumer kafka --name counts --topic orders --log counts-log --json",
    ]
    return {line.replace(f"{tmp_path}/", ""): statements(line) for line in lines}


GRANTED = (("pool", "snapshot"), ("sequenced", "transaction_id"), ("mark", "mark"), ("postgres", "snapshot"))


def statements(line: str) -> list[str]:
    done = CliRunner().invoke(command_line, line.split())
    assert done.exit_code == 0, f"harvest {line}: {done.exception!r} {done.output}"
    kept = "\n".join(each for each in done.stdout.splitlines() if not each.lstrip().startswith(("--", "#")))
    if line.startswith("grants") and not line.endswith("--json"):
        # The errors and notices between them are sentences.
        found = re.findall(r"\b(?:GRANT|REVOKE|CREATE POLICY|DROP POLICY|ALTER TABLE) [^;]*;", kept)
        return sorted({" ".join(each.split()) for each in found})
    if line.endswith("--json"):
        return [json.dumps(each, sort_keys=True) for each in json.loads(kept)]
    return [squeezed for each in re.split(r"(?<=;)\n", kept) if (squeezed := " ".join(each.split()))]


def tables():
    """Return every statement of the code that creates a permanent table or an index, whatever its variables' names."""
    sql = [each.read_text(encoding="utf-8") for package in PACKAGES for each in (ROOT / package).rglob("*.sql")]
    found = set()
    for text in (*texts(), *sql):
        for each in re.findall(r"CREATE (?:UNLOGGED )?(?:TABLE|INDEX) IF NOT EXISTS [^;]*", text):
            bare = re.sub(r"--.*", "", each)
            found.add(" ".join(re.sub(r"\{\w*\}", "{}", bare.replace("{{}}", "EMPTY")).split()))
    return sorted(found)


# -- errors


def errors():
    """Every error of ours by name: its bases, its exit code, its attributes."""
    classes = {
        node.name: node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    ours = {"HarvestError"}
    while more := {
        name
        for name, node in classes.items()
        if name not in ours and ours & {base.id for base in node.bases if isinstance(base, ast.Name)}
    }:
        ours |= more
    return {name: error(classes[name]) for name in sorted(ours)}


def error(node: ast.ClassDef) -> dict[str, object]:
    reported: dict[str, object] = {"kind of": [ast.unparse(base) for base in node.bases]}
    for each in node.body:
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        if target is not None and ast.unparse(target) == "exit_code":
            reported["exit code"] = ast.literal_eval(each.value)
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            reported["made with"] = [arg.arg for arg in (*each.args.args[1:], *each.args.kwonlyargs)]
    return reported


# -- packages


def packages():
    """Names of the distribution, its scripts, entry points and extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {name: sorted(each) for name, each in project["entry-points"].items()}
    for group in groups:
        for each in entry_points(group=group):
            each.load()
    installed = {each.name for each in distribution(project["name"]).entry_points}
    assert installed >= {*project["scripts"], *(name for group in groups.values() for name in group)}
    return {
        "name": project["name"],
        "python": project["requires-python"],
        "scripts": sorted(project["scripts"]),
        "entry points": groups,
        "extras": sorted(project["optional-dependencies"]),
        "component registry": tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dg"]["project"],
    }


def importable():
    """Return the public names of the packages, with what users see of each."""
    reported = {}
    for name in PUBLIC_MODULES:
        module = importlib.import_module(name)
        reported[name] = {each: public(getattr(module, each)) for each in sorted(getattr(module, "__all__", ()))}
    return reported


def histories():
    """The fields of a history's lines, by their kind."""
    reported = {name: [each.name for each in dataclasses.fields(kind_of)] for name, kind_of in KINDS.items()}
    return {**reported, "records written": list(WrittenRecord._fields), "records polled": list(PolledRecord._fields)}


# -- Dagster


SHOP = """
name: shop
table: sales.outbox
topics: [orders, refunds]
"""


def dagster():
    """Definitions by name, the component's and the resource's fields, and the tags of runs."""
    shop = outbox_definitions(OutboxComponent.resolve_from_yaml(SHOP))
    return {
        "component": f"{OutboxComponent.__module__}.{OutboxComponent.__qualname__}",
        "attributes": settings(OutboxSettings),
        "resource": settings(HarvesterResource),
        "the example": defined(defs()),
        "shop": defined(shop),
        "tags": sorted(each for each in texts() if re.fullmatch(r"(harvest|airflow|dagster)/[a-z_]+", each)),
    }


def defined(definitions: dg.Definitions) -> dict[str, object]:
    graph = definitions.resolve_asset_graph()
    repository = definitions.get_repository_def()
    jobs = [each for each in repository.get_all_jobs() if not each.name.startswith("__")]
    return {
        "assets": {
            key.to_user_string(): {"group": graph.get(key).group_name, "kinds": sorted(graph.get(key).kinds)}
            for key in graph.get_all_asset_keys()
        },
        "checks": sorted(f"{key.asset_key.to_user_string()}: {key.name}" for key in graph.asset_check_keys),
        "jobs": {each.name: sorted(each.graph.node_dict) for each in jobs},
        "schedules": {each.name: each.cron_schedule for each in repository.schedule_defs},
        "sensors": sorted(each.name for each in repository.sensor_defs),
        "resources": sorted(definitions.resources or ()),
    }


# -- Airflow, by its text: to import it takes long, and leaves files in the home folder


CALLED = r"dagster_default|harvest_kafka\w*|airflow_dags\.\w+\.\w+"
"""Connections, and functions of ours that Airflow's operators are given by their names."""


def airflow():
    """DAGs with their parameters, tasks, operators' arguments, connections, callables that are named by text."""
    reported: dict[str, object] = {}
    named, tasks = set(), set()
    for path, tree in trees().items():
        if not path.startswith("airflow_dags/"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                given = {each.arg: each.value for each in node.keywords}
                if "dag_id" in given:
                    params = given.get("params")
                    reported[f"dag {ast.literal_eval(given['dag_id'])}"] = {
                        "schedule": ast.unparse(given["schedule"]),
                        "tags": ast.unparse(given["tags"]),
                        "parameters": sorted(map(ast.literal_eval, params.keys)) if params is not None else [],
                    }
                if "task_id" in given:
                    tasks.add(ast.literal_eval(given["task_id"]))
            if isinstance(node, ast.Constant) and re.fullmatch(CALLED, str(node.value)):
                named.add(node.value)
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "BaseOperator" for base in node.bases):
                reported[f"operator {node.name}"] = operator(node)
    assert len([name for name in reported if name.startswith("dag ")]) >= 5
    types = {each["connection-type"]: sorted(each["conn-fields"]) for each in get_provider_info()["connection-types"]}
    return {
        **reported,
        "tasks": sorted(tasks),
        "connections and callables": sorted(named),
        "connection types, and what their extra takes": types,
    }


def operator(node: ast.ClassDef) -> dict[str, object]:
    (made,) = (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    defaults = [None if each is None else ast.unparse(each) for each in made.args.kw_defaults]
    fields = [
        each for each in node.body if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == "template_fields"
    ]
    return {
        "arguments": {each.arg: default for each, default in zip(made.args.kwonlyargs, defaults, strict=True)},
        "template_fields": [ast.literal_eval(each.value) for each in fields],
    }


# -- the tests


def test_commands():
    check(LIST, "commands", found_commands())


def test_module_command_lines(monkeypatch):
    check(LIST, "module command lines", module_commands(monkeypatch))


def test_configuration(tmp_path):
    check(LIST, "configuration", configuration(tmp_path))


def test_keys_are_accepted(tmp_path):
    check(LIST, "configuration files", accepted(tmp_path))


def test_pipelines():
    check(LIST, "pipelines", pipelines())


def test_environment_variables():
    check(LIST, "environment variables", variables())


def test_printed_sql_and_rights(tmp_path):
    check(LIST, "printed", printed(tmp_path))


def test_statements_that_create():
    check(LIST, "tables in the code", tables())


def test_errors_and_exit_codes():
    check(LIST, "errors", errors())


def test_packages():
    check(LIST, "packages", packages())


def test_importable_names():
    check(LIST, "importable", importable())


def test_histories():
    check(LIST, "histories", histories())


def test_dagster():
    check(LIST, "dagster", dagster())


def test_airflow():
    check(LIST, "airflow", airflow())
