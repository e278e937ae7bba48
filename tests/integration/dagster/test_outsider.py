"""A project as `create-dagster project` makes it, where the wheel is installed with its extra `dagster` alone."""

import json
import os
import subprocess

import pytest
from support.installed import build, find_uv, install

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]  # about a minute; the first use of uv may have to download

COMPONENT = "dagster_harvest.components.OutboxComponent"
PACKAGE = "acme_platform"
PYPROJECT = f"""\
[project]
name = "{PACKAGE}"
requires-python = ">=3.11,<3.15"
version = "0.1.0"

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{PACKAGE}"
registry_modules = ["{PACKAGE}.components.*"]
"""
DEFINITIONS = """\
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
LOADED = f"""
import json, sys
from {PACKAGE}.definitions import defs
repository = defs().get_repository_def()
ours = sorted(name for name in sys.modules if name.startswith("dagster_harvest.example"))
print(json.dumps([ours, sorted(job.name for job in repository.get_all_jobs())]))
"""


@pytest.fixture(scope="module")
def venv(parts, tmp_path_factory):
    uv, made = find_uv(parts), tmp_path_factory.mktemp("venv")
    install(uv, build(uv, tmp_path_factory.mktemp("wheel")), made, "dagster")
    return made


@pytest.fixture
def run(venv, parts, tmp_path):
    """Make the project, install it as `uv sync` does, and return a function that runs a program in it."""
    package = tmp_path / "project" / "src" / PACKAGE
    for folder in (package, package / "defs", package / "components"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    project = tmp_path / "project"
    (project / "pyproject.toml").write_text(PYPROJECT)
    command = [find_uv(parts), "pip", "install", "--quiet", "--no-deps", "--python", venv / "bin" / "python", "-e", "."]
    subprocess.run(command, check=True, cwd=project)
    (tmp_path / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HARVEST_", "PYTHON"))}
    environment = kept | {
        "DAGSTER_HOME": str(tmp_path / "home"),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
    }

    def program(*words):
        done = subprocess.run(
            [venv / "bin" / words[0], *words[1:]],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    program.defs = package / "defs"
    return program


def test_the_component_is_found_scaffolded_and_loaded_and_the_example_is_not(run):
    assert COMPONENT in run("dg", "list", "components", "--json")
    run("dg", "scaffold", "defs", COMPONENT, "shop", "--topics", "orders")
    assert (run.defs / "shop" / "defs.yaml").is_file()
    assert "All definitions loaded" in run("dg", "check", "defs")
    listed = run("dg", "list", "defs", "--json")
    assert "shop_harvester_daemon" in listed
    assert "flights" not in listed
    modules, jobs = json.loads(run("python", "-c", LOADED).splitlines()[-1])
    assert modules == []
    assert {"shop_harvester_daemon", "shop_audit"} <= set(jobs)
    assert run("harvest", "--version").startswith("harvest ")


def test_the_extra_dagster_brings_no_spark(run):
    code = "from importlib.util import find_spec as f; print([n for n in ('pyspark', 'pandas', 'airflow') if f(n)])"
    assert run("python", "-c", code) == "[]\n"
