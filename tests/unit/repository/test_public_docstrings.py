"""Every public class and function has a docstring of its own, and so has every public method of a public class.

Public is what a package lists in `__all__`, and what a program in the README, in `docs/` or in `docs/examples` imports.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

from harvest_lib.consume import KeyValueStore, PostgresStore, SqliteStore, Store

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[3]
OURS = ("harvest_lib", "dagster_harvest")
PACKAGES = ("harvest_lib", "harvest_lib.audit", "harvest_lib.consume", "harvest_lib.spark.audit")
DESCRIBED_BY = dict.fromkeys((KeyValueStore, PostgresStore, SqliteStore), Store)
"""Classes whose methods a Protocol describes that they do not inherit from."""
PROGRAM = re.compile(r"^ *```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def imported(program: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import of ours in a program."""
    for node in ast.walk(ast.parse(dedent(program))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            yield from ((node.module, alias.name) for alias in node.names)


def programs() -> Iterator[str]:
    """Yield the programs that the documentation shows."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        yield from PROGRAM.findall(page.read_text(encoding="utf-8"))
    for example in (ROOT / "docs" / "examples").glob("*.py"):
        yield example.read_text(encoding="utf-8")


LISTED = {(package, name) for package in PACKAGES for name in import_module(package).__all__}
PUBLIC = sorted(LISTED | {pair for program in programs() for pair in imported(program)})


def undocumented(name: str, value: object) -> Iterator[str]:
    """Yield the name if it lacks a docstring, and what lacks one in it; a constant can have none at run time.

    A method has the description of the base class or the Protocol whose method it implements.
    """
    if not inspect.isclass(value) and not inspect.isroutine(value):
        return
    own = value.__doc__ or ""
    if not own.strip() or own.startswith(f"{value.__name__}("):  # a dataclass without one is given its signature
        yield name
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            is_method = inspect.isroutine(member) or isinstance(member, (property, staticmethod, classmethod))
            described = inspect.getdoc(getattr(value, attribute)) or hasattr(DESCRIBED_BY.get(value), attribute)
            if is_method and not attribute.startswith("_") and not described:
                yield f"{name}.{attribute}"


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=lambda part: part)
def test_a_public_name_is_documented(module, name):
    assert list(undocumented(name, getattr(import_module(module), name))) == []


def test_what_lacks_a_docstring_is_found():
    @dataclass
    class Bare:
        def method(self) -> None: ...

        @property
        def size(self) -> int: ...

        @classmethod
        def make(cls) -> None: ...

        def described(self) -> None:
            """Do it."""

        def _private(self) -> None: ...

    def function() -> None: ...

    assert list(undocumented("Bare", Bare)) == ["Bare", "Bare.method", "Bare.size", "Bare.make"]
    assert list(undocumented("function", function)) == ["function"]


def test_the_names_that_programs_import_are_public():
    assert list(imported("from harvest_lib.record import RecordLimits as L\nimport os\nfrom json import loads")) == [
        ("harvest_lib.record", "RecordLimits")
    ]
    assert ("harvest_lib.airflow.operators.dagster", "DagsterJobOperator") in PUBLIC
    assert ("harvest_lib.spark.outbox_sink", "foreach_batch") in PUBLIC
