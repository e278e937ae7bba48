"""Tiers of tests: `quick` for `make test`, `gate` for every change, `full` for `make test-all`.

Each test names its tier by a mark of this name: on itself, its class, or its module. The closest mark counts.
`--tier` selects; it may be repeated. Without it every tier runs. `long` and `e2e` stand beside the tier, see `-m`.

`gate(cases=N)` has N cases of each test in `gate`, from all over its parameters, and the others in `full`: where cases
are many, or take long, and differ in what they go through rather than in what they promise.
"""

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

TIERS = ("quick", "gate", "full")
NO_TIER_NEEDED = {"long", "e2e"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tier`."""
    parser.addoption("--tier", action="append", choices=TIERS, default=[], help="run the tests of this tier only")


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test: the closest mark that names one; empty if none does.

    Of the marks of a function and those of its parameters the later tier counts.
    """
    for node in reversed(item.listchain()):
        if named := {mark.name for mark in node.own_markers} & {*TIERS}:
            return max(named, key=TIERS.index)
    return ""


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other tiers than the selected."""
    wanted = config.getoption("tier")
    if not wanted:
        return
    later = spared(items)
    tiers = {item: "full" if item in later else tier_of(item) for item in items}
    others = [item for item in items if tiers[item] not in wanted and not _is_nowhere(item)]
    config.hook.pytest_deselected(items=others)
    left = {*others}
    items[:] = [item for item in items if item not in left]


def spared(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the cases that run in `full` only, though their tests are in `gate`."""
    cases = defaultdict[tuple[str, int], list[pytest.Item]](list)
    for item in items:
        if most := _most_cases(item):
            cases[item.nodeid.partition("[")[0], most].append(item)
    return {
        item
        for (_, most), found in cases.items()
        for item in {*found} - {found[place * len(found) // most] for place in range(most)}
    }


def _most_cases(item: pytest.Item) -> int:
    """So many cases of a test are in `gate`, by its closest mark; 0 if all, or none, are."""
    if tier_of(item) != "gate":
        return 0
    closest = item.get_closest_marker("gate")
    return closest.kwargs.get("cases", 0) if closest is not None else 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that no tier has."""
    if _is_nowhere(item):
        pytest.fail(f"no tier has it: mark it as one of {', '.join(TIERS)}", pytrace=False)


def _is_nowhere(item: pytest.Item) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    return not marks & {*TIERS, "long"} and not ("e2e" in marks and "e2e" in item.path.parts)


def ignores(path: Path, config: pytest.Config) -> bool:
    """Return True if a module names none of the selected tiers, so that it need not be imported."""
    wanted = config.getoption("tier")
    if not wanted or path.suffix != ".py" or not path.name.startswith("test_"):
        return False
    source = path.read_text(encoding="utf-8")
    spellings = [f"mark.{tier}" for tier in wanted] + (["mark.gate(cases"] if "full" in wanted else [])
    return not any(each in source for each in spellings)


def tiers_in(module: ast.Module) -> dict[str, set[str]]:
    """Return for each test function of a module the tiers and exemptions that it names, or else its class or module.

    Keys are `test_name` or `TestClass.test_name`. An empty set is a test without a tier.
    """
    return dict(_tests(module, _named(module)))


def read_tiers(path: Path) -> dict[str, set[str]]:
    """Return `tiers_in` for a file."""
    return tiers_in(ast.parse(path.read_text(encoding="utf-8")))


def names_of(folder: Path, tiers: Collection[str]) -> set[str]:
    """Return the tests of these tiers below a folder, without their parameters, as pytest names them from there."""
    found = set()
    for path in folder.rglob("test_*.py"):
        for name, named in read_tiers(path).items():
            if named & {*tiers} and not named & NO_TIER_NEEDED:
                found.add(f"{path.relative_to(folder)}::{name.replace('.', '::')}")
    return found


def _tests(node: ast.AST, inherited: set[str], prefix: str = "") -> Iterator[tuple[str, set[str]]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef) and each.name.startswith("Test"):
            named = _decorators(each) | _named(each)
            yield from _tests(each, _closest(named, inherited), f"{prefix}{each.name}.")
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test"):
            yield prefix + each.name, _closest(_decorators(each), inherited)
        elif isinstance(each, ast.Assign) and not prefix:
            for target in each.targets:  # Hypothesis' machines: `TestPool = Machine.TestCase`
                if isinstance(target, ast.Name) and target.id.startswith("Test"):
                    yield f"{target.id}.runTest", inherited
        elif isinstance(each, ast.If | ast.Try | ast.With):
            yield from _tests(each, inherited, prefix)


def _closest(own: set[str], inherited: set[str]) -> set[str]:
    """A tier of its own hides an inherited one; exemptions add up."""
    return own | (inherited & NO_TIER_NEEDED if own & {*TIERS} else inherited)


def _named(node: ast.Module | ast.ClassDef) -> set[str]:
    """The marks of interest in `pytestmark`."""
    found = set()
    for each in node.body:
        if isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in each.targets):
            found |= _marks(each.value)
    return found


def _decorators(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The marks that stand above a test, not those of single parameters."""
    marks = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return {mark for each in marks if isinstance(each, ast.Attribute) for mark in _marks(each)}


def _marks(node: ast.AST) -> set[str]:
    # Spelled out: a module that does not have these words is not imported.
    names = {ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return {each for each in (*TIERS, *NO_TIER_NEEDED) if f"pytest.mark.{each}" in names}
