"""Lists of public names and formats, and their comparison with the code."""

import difflib
import json
import os
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "UPDATE_PUBLIC_NAMES"
"""Set to 1, the lists are written again instead of compared."""


def check_lines(file: Path, section: str, found: Iterable[str]) -> None:
    """Compare the lines of a list that begin with the section's name with `found`: both have to be equal. Or write
    them, if VARIABLE is 1."""
    now = sorted({f"{section} {each}" for each in found})
    assert now, f"nothing was found for section `{section}`"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    listed = [each for each in lines if each.startswith(f"{section} ")]
    if os.environ.get(VARIABLE) == "1":
        file.write_text("\n".join(sorted({*lines, *now}.difference(set(listed) - set(now)))) + "\n", encoding="utf-8")
        return
    _compare(file, section, listed, now)


def shape(value: object) -> object:
    """Return which keys JSON has and of which type each value is, without the values."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        kinds = {json.dumps(shape(each), sort_keys=True) for each in value}
        return [json.loads(kind) for kind in sorted(kinds)]
    return {type(None): "null", bool: "bool", int: "number", float: "number", str: "text"}[type(value)]


def _compare(file: Path, section: str, before: list[str], now: list[str]) -> None:
    diff = list(difflib.unified_diff(before, now, "listed", "found", lineterm="", n=2))
    assert not diff, "\n".join(
        [
            f"what is public has changed: section `{section}` of {file.name}",
            *diff,
            "Users rely on these names. If the change is meant, say so in CHANGELOG.md and write the list again:",
            f"  {VARIABLE}=1 python -m pytest tests/contract/{_test_of(file)}",
        ]
    )


def _test_of(file: Path) -> str:
    return f"test_{file.stem}.py"
