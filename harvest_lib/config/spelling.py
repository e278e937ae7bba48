"""The two spellings of a setting, Python's and goharvest's, and the way from either to the field.

`limits.mark_query_records` is `limits.markQueryRecords` in a file; a duration's field ends in `_seconds`, which its
name in a file lacks because the value there carries its unit.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from harvest_lib.config.problems import Problem

_IRREGULAR = {"leader_group_id": "leaderGroupID"}
_ALSO = {"receiveDeadline": "heartbeat_timeout_seconds"}  # the name goharvest's documentation uses


def goharvest_name(field_name: str) -> str:
    """Spell a field as goharvest's files do."""
    if field_name in _IRREGULAR:
        return _IRREGULAR[field_name]
    if not field_name.islower():
        return field_name  # no field's name, so it is left as it was written
    first, *rest = field_name.removesuffix("_seconds").split("_")
    return first + "".join(word.capitalize() for word in rest)


def goharvest_names(model: type[BaseModel]) -> dict[str, str]:
    """Map every spelling a file may use to the field it means."""
    names = {goharvest_name(name): name for name in model.model_fields}
    return names | {also: name for also, name in _ALSO.items() if name in model.model_fields}


def to_field_names(
    model: type[BaseModel], values: Mapping[Any, Any], *, elsewhere: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """Rename the keys of Python values to field names; both spellings are understood, and None means the default.

    Keys that no field has, and fields given twice, are left out and returned as problems. `elsewhere` maps a key to
    the place where it would be right.
    """
    spellings = goharvest_names(model) | {name: name for name in model.model_fields}
    renamed: dict[str, Any] = {}
    problems = []
    for key, value in values.items():
        name = spellings.get(key)
        if name is None:
            problems.append(unknown(str(key), model.model_fields, elsewhere=elsewhere))
        elif name in renamed:
            problems.append(
                Problem(path=(name,), message="is given twice, in two spellings", remedy="keep one of them")
            )
        elif value is not None:
            renamed[name] = value
    return renamed, problems


def unknown(key: str, known: Iterable[str], *, elsewhere: Mapping[str, str] | None = None) -> Problem:
    """Report a key that no field has, with the nearest one that exists."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1)
    if elsewhere and key in elsewhere:
        remedy = f"move it to `{elsewhere[key]}`"
    elif near:
        remedy = f"did you mean `{by_lower[near[0]]}`?"
    else:
        remedy = f"remove it; known here: {', '.join(sorted(by_lower.values()))}"
    return Problem(path=(key,), message="is not a setting", remedy=remedy)
