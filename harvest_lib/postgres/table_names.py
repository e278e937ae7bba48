"""Names of tables as written in configurations and commands."""

import re

_QUOTED_SCHEMA = re.compile(r'"(?P<schema>(?:[^"]|"")+)"\.(?P<quote>"?)(?P<table>.+)(?P=quote)', re.DOTALL)


def name_parts(name: str, suffix: str = "") -> tuple[str, ...]:
    """Return the identifiers of `table` or `schema.table`, as they are spelled; the last one with a suffix.

    A schema in double quotes may have dots, as in SQL: `"my.app".outbox`.
    """
    if quoted := _QUOTED_SCHEMA.fullmatch(name):
        parts = [quoted[each].replace('""', '"') for each in ("schema", "table")]
    else:
        parts = name.split(".", 1)
    return (*parts[:-1], parts[-1] + suffix)


def is_no_table(name: str) -> bool:
    """Return True if a name has an empty part, a NUL, or more than a single dot outside of double quotes."""
    is_plain = _QUOTED_SCHEMA.fullmatch(name) is None
    return "\0" in name or not all(name_parts(name)) or (is_plain and name.count(".") > 1)
