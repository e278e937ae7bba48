"""Supported types of an outbox table's columns, and the statements that convert other types. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from psycopg import sql

_TEXT = ("text", "character varying")
_MOMENT = "timestamp with time zone"

GOHARVEST: Mapping[str, tuple[str, ...]] = {
    "id": ("bigint", "integer"),
    "create_time": (_MOMENT,),
    "kafka_topic": _TEXT,
    "kafka_key": _TEXT,
    "kafka_value": _TEXT,
    "kafka_header_keys": ("text[]",),
    "kafka_header_values": ("text[]",),
    "leader_id": ("uuid",),
}
"""Supported types of each column of goharvest's table. A column of another type is converted to the first type."""

NATIVE: Mapping[str, tuple[str, ...]] = {
    **GOHARVEST,
    "kafka_value": (*_TEXT, "bytea"),
    "transaction_id": ("xid8",),
}

_DEFAULTS = {
    "create_time": "clock_timestamp()",
    "kafka_header_keys": "'{}'",
    "kafka_header_values": "'{}'",
    "transaction_id": "pg_current_xact_id()",
}
"""Defaults of the native table's columns. A conversion first drops the column's old default, since the old default may
not fit the new type."""

_ELEMENTS = {
    "json": "SELECT each FROM json_array_elements_text($1) AS each",
    "jsonb": "SELECT each FROM jsonb_array_elements_text($1) AS each",
    "json[]": "SELECT each FROM unnest($1) AS found, LATERAL (SELECT found #>> '{}') AS text (each)",
    "jsonb[]": "SELECT each FROM unnest($1) AS found, LATERAL (SELECT found #>> '{}') AS text (each)",
    "bytea[]": "SELECT each FROM unnest($1) AS found, LATERAL (SELECT convert_from(found, 'UTF8')) AS text (each)",
}
"""Bodies of the functions that convert a column to text[], for each type of the column. Functions are needed because
ALTER TABLE accepts no subquery."""

_LOSES = "jsonb has not kept the text that was written (spaces, the order of keys, all but the last of equal keys)"
_NUMBERS = ("bigint", "integer", "numeric", "double precision")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundColumn:
    """A column as Postgres' catalogue describes it."""

    type: str
    never_null: bool
    has_default: bool


def wrong_types(found: Mapping[str, FoundColumn], expected: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the names of the columns whose type is not among the expected types. Missing columns are left out."""
    return [name for name, types in expected.items() if name in found and found[name].type not in types]


def shown(types: tuple[str, ...]) -> str:
    """Format the supported types of a column for an error text."""
    return " or ".join(sorted(types))


def alter(
    table: sql.Identifier, found: Mapping[str, FoundColumn], expected: Mapping[str, tuple[str, ...]], *, is_native: bool
) -> str | None:
    """Return a text for operators: notes, a colon, and the statements that give all columns a supported type. Return
    None if a column's type cannot be converted."""
    clauses: list[str] = []
    notes: list[str] = []
    functions: dict[str, str] = {}
    for name in wrong_types(found, expected):
        kind, target = found[name].type, expected[name][0]
        using = _using(name, kind, target, is_native=is_native)
        if using is None:
            return None
        column = sql.Identifier(name).as_string(None)
        if kind in _ELEMENTS and target == "text[]":
            functions[kind] = _function(kind)
        notes += [each for each in _notes(name, kind) if each not in notes]
        clauses += _clauses(column, target, using.format(column), found[name], _DEFAULTS.get(name))
    statements = [*functions.values(), f"ALTER TABLE {table.as_string(None)} {', '.join(clauses)}"]
    remarks = "; ".join(["as the owner, while nothing reads or writes it", *notes])
    return f"{remarks}: {'; '.join(statements)}"


def _clauses(column: str, target: str, using: str, found: FoundColumn, default: str | None) -> Iterator[str]:
    if found.has_default:
        yield f"ALTER {column} DROP DEFAULT"
    yield f"ALTER {column} TYPE {target} USING {using}"
    if found.has_default and default is not None:
        yield f"ALTER {column} SET DEFAULT {default}"


def _using(name: str, kind: str, target: str, *, is_native: bool) -> str | None:
    """Return the expression that converts a column to its new type, with {} in place of the column. Return None if the
    type cannot be converted."""
    if name == "id" and is_native:  # Postgres does not change the type of a partition key
        return None
    if target == "text":
        return "convert_from({}, 'UTF8')" if kind == "bytea" else "{}::text"
    if target == "text[]":
        if kind in _ELEMENTS:
            return "pg_temp.texts({})"
        return "{}::text[]" if kind.endswith("[]") or kind in _TEXT else None
    if target == _MOMENT:
        return _moment(kind)
    return f"{{}}::text::{target}"


def _moment(kind: str) -> str | None:
    if kind == "timestamp without time zone":
        return "{} AT TIME ZONE 'UTC'"
    if kind == "date":
        return "{}::timestamp AT TIME ZONE 'UTC'"
    if kind in _NUMBERS:
        return "to_timestamp({})"
    return "{}::timestamptz" if kind in _TEXT else None


def _notes(name: str, kind: str) -> Iterator[str]:
    if kind == "jsonb" and name == "kafka_value":
        yield _LOSES
    if name == "create_time" and kind.startswith(("timestamp", "date")):
        yield "its times are taken for UTC"
    if name == "create_time" and kind in _NUMBERS:
        yield "its numbers are taken for seconds since 1970"


def _function(kind: str) -> str:
    return f"CREATE FUNCTION pg_temp.texts({kind}) RETURNS text[] LANGUAGE sql RETURN ARRAY({_ELEMENTS[kind]})"
