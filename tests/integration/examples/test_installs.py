"""Each documented way to install this package, in an environment of its own: the code of its page runs there.

Packages are the newest that the requirements allow, as a user gets them, and not those of the lock.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.install_lines import PARTS, ROOT, Line, code_of, pages
from support.installed import build, find_uv
from typer.main import get_command

from harvest_lib.cli import _CHECKOUT_ONLY, app

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(900)]  # downloads the newest packages

SPARKS = ("==4.0.*", "<4.4")
"""What the lines ask for."""
CLUSTER = "docs/spark-submit.md"
"""Its environments have no pyspark, which the cluster's Spark brings."""


def of_pages():
    """Return the code of all pages, by the line that installs what it needs."""
    found = defaultdict(dict)
    for page in pages():
        for line, code in code_of(page).items():
            found[line][page] = code
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for alone in sorted({*extras, *PARTS} - {"dev"}):  # which is for the environment of the lock
        found[Line(alone)].setdefault("", None)
    return found


PAGES = of_pages()


@pytest.fixture(scope="module")
def uv(parts):
    return find_uv(parts)


@pytest.fixture(scope="module")
def wheel(uv, tmp_path_factory):
    return build(uv, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def packages(uv, tmp_path_factory):
    """Variables of uv for downloads of this module alone, and for wheels of Spark, which PyPI has as sources: some
    mirrors have uv download and build these again for each environment, and keep all of it."""
    cache, wheels = (tmp_path_factory.mktemp(name) for name in ("cache", "spark"))
    variables = {"UV_CACHE_DIR": str(cache), "UV_FIND_LINKS": str(wheels)}
    for line in SPARKS:
        command = [uv, "tool", "run", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, f"pyspark{line}"]
        subprocess.run(command, check=True, env=os.environ | variables)
    yield variables
    shutil.rmtree(cache)
    shutil.rmtree(wheels)


@pytest.fixture
def run(tmp_path, packages):
    """Return a function that runs a program in an empty folder with an empty home, and returns what it printed."""
    for name in ("home", "folder"):
        (tmp_path / name).mkdir()
    foreign = ("HARVEST_", "PYTHON", "PIPX_", "UV_PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    kept |= {"HOME": str(tmp_path / "home"), "HARVEST_HOME": str(tmp_path / "state"), "COLUMNS": "200", **packages}

    def program(*command, **variables):
        done = subprocess.run(
            list(map(str, command)),
            cwd=tmp_path / "folder",
            env=kept | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    program.folder = tmp_path / "folder"
    return program


@pytest.fixture
def install(uv, wheel, run, tmp_path):
    """Return a function that makes an environment of what a line installs, and returns its folder of programs."""
    made = tmp_path / "venv"

    def from_line(line):
        run(uv, "venv", "--quiet", "--python", sys.executable, made)
        ours = f"outbox-harvester[{line.extras}] @ {wheel.as_uri()}" if line.extras else str(wheel)
        run(uv, "pip", "install", "--quiet", "--python", made / "bin" / "python", ours, *line.more)
        return made / "bin"

    yield from_line
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def cluster(tmp_path):
    """The folder that a cluster's Spark has among the places of modules."""
    folder = tmp_path / "spark"
    folder.mkdir()
    for name in ("pyspark", "py4j"):
        (folder / name).symlink_to(Path(find_spec(name).origin).parent)
    return str(folder)


def commands(words):
    """Return the words of a command without its arguments; none for a command of a clone."""
    found, command = [], get_command(app)
    for word in words.split():
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        found.append(word)
    assert found, f"there is no command `harvest {words}`"
    return [] if found[0] in _CHECKOUT_ONLY else found


@pytest.mark.parametrize("line", PAGES, ids=str)
def test_the_code_of_a_page_runs_where_its_line_was_typed(line, install, run, cluster):
    programs = install(line)
    python = programs / "python"
    assert run(programs / "harvest", "--version").startswith("harvest ")
    for module in PARTS.get(line.extras, []) if not line.more else []:
        run(python, "-c", f"import {module}")
    shown = set()
    for page, code in PAGES[line].items():
        if code is None:
            continue
        where = {"PYTHONPATH": cluster} if page == CLUSTER else {}
        run(python, "-c", "\n".join(sorted(code.imports)), **where)
        shown |= {(python, "-m", module) for module in code.modules}
        shown |= {(programs / "harvest", *words) for each in code.commands if (words := commands(each))}
    for command in sorted(shown, key=str):
        assert "sage: " in run(*command, "--help")


@pytest.mark.parametrize(
    "line", [Line("spark"), Line("spark", ("pyspark==4.0.*",)), Line("local,spark", ("pyspark==4.3.*",))], ids=str
)
def test_jars_are_brought_by_each_version_of_spark(line, install, run, tmp_path):
    empty = {"HARVEST_CACHE": str(tmp_path / "cache")}
    brought = run(install(line) / "python", "-m", "harvest_lib.spark.jars", **empty).strip().split(",")
    names = " ".join(Path(each).name for each in brought if Path(each).is_file())
    assert "postgresql-" in names
    assert "spark-sql-kafka-0-10_2.13-4." in names


def test_a_packed_environment_is_made_as_the_page_says_and_runs_in_another_place(wheel, run, cluster):
    page = (ROOT / CLUSTER).read_text(encoding="utf-8")
    (typed,) = re.findall(r"^## A packed environment\n.*?```sh\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    assert "python3.11 -m venv" in typed
    assert "pip install . " in typed
    typed = typed.replace("python3.11", sys.executable).replace(" . ", f" {wheel} ")
    run("sh", "-ec", typed)
    (unpacked,) = re.findall(r"^mkdir environment && .*$", page, re.MULTILINE)
    run("sh", "-ec", f"rm -r packed\n{unpacked}")
    python = run.folder / "environment" / "bin" / "python"
    run(python, "-c", "import harvest_lib.spark.outbox_sink, harvest_lib.spark.data_source", PYTHONPATH=cluster)
    assert "usage: " in run(python, "-m", "harvest_lib.spark.audit", "--help", PYTHONPATH=cluster)


WAYS = {
    "pip": ("$PYTHON -m venv venv && venv/bin/pip install $WHEEL", "venv/bin/python"),
    "uv pip": ("uv venv --python $PYTHON venv && uv pip install $WHEEL", "venv/bin/python"),
    "uv tool": ("uv tool install --python $PYTHON $WHEEL", "uv/tools/outbox-harvester/bin/python"),
    "pipx": ("pipx install --python $PYTHON $WHEEL", "pipx/venvs/outbox-harvester/bin/python"),
}
"""What a user types, and the Python that it makes."""


@pytest.mark.parametrize(("typed", "python"), WAYS.values(), ids=WAYS)
def test_the_command_in_an_error_adds_the_extra_that_is_missing(typed, python, uv, wheel, run, tmp_path):
    folder = run.folder
    (folder / "tools").mkdir()
    for name, command in {"pipx": f"{uv} tool run pipx", "uv": uv}.items():
        (folder / "tools" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / "tools" / name).chmod(0o755)
    places = {"UV_TOOL_DIR": "uv/tools", "UV_TOOL_BIN_DIR": "bin", "PIPX_HOME": "pipx", "PIPX_BIN_DIR": "bin"}
    variables = {name: str(folder / place) for name, place in (places | {"VIRTUAL_ENV": "venv"}).items()}
    variables |= {"WHEEL": str(wheel), "PYTHON": sys.executable, "PIPX_DEFAULT_PYTHON": sys.executable}
    # No UV_PYTHON: `uv pip` would install there.
    variables["PATH"] = os.pathsep.join(
        [f"{folder}/venv/bin", f"{folder}/tools", str(Path(sys.executable).resolve().parent), os.environ["PATH"]]
    )
    run("sh", "-ec", typed, **variables)
    hint = run(folder / python, "-c", "from harvest_lib.errors import install_hint; print(install_hint('pipeline'))")
    assert run(folder / python, "-c", "from importlib.util import find_spec; print(find_spec('re2'))") == "None\n"
    run("sh", "-ec", hint, **variables)
    run(folder / python, "-c", "import re2")
