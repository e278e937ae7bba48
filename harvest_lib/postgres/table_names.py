"""Parses names of tables, as they are written in configurations and commands."""

import re

_QUOTED_SCHEMA = re.compile(r'"(?P<schema>(?:[^"]|"")+)"\.(?P<quote>"?)(?P<table>.+)(?P=quote)', re.DOTALL)


def name_parts(name: str, suffix: str = "") -> tuple[str, ...]:
    """Return the identifiers in `table` or `schema.table`, without a change of case. `suffix` is appended to the table.

    A schema in double quotes may contain dots, as in SQL: `"my.app".outbox`.
    """
    if quoted := _QUOTED_SCHEMA.fullmatch(name):
        parts = [quoted[each].replace('""', '"') for each in ("schema", "table")]
    else:
        parts = name.split(".", 1)
    return (*parts[:-1], parts[-1] + suffix)


def is_no_table(name: str) -> bool:
    """Return True if a name is not the name of a table: if it has an empty part, a NUL character, or more than a single
    dot outside double quotes."""
    is_plain = _QUOTED_SCHEMA.fullmatch(name) is None
    return "\0" in name or not all(name_parts(name)) or (is_plain and name.count(".") > 1)
