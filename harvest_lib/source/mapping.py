"""The parts of a record as expressions over a table of another layout."""

from collections.abc import Mapping, Sequence

from psycopg import sql

from harvest_lib.config.columns import ColumnMapping, Constant, Part
from harvest_lib.database import in_statement


def mapped_columns(mapping: ColumnMapping, *, value_is_bytes: bool = False) -> Mapping[str, sql.Composable]:
    """Return the expression of each part, for statements with values. Everything becomes text, but a value of bytes; a
    key or topic that is null becomes empty, so that it belongs to a shard, and is refused if it cannot be."""
    value = mapping.kafka_value
    created = in_statement(sql.Identifier(mapping.create_time)) if mapping.create_time is not None else sql.SQL("NULL")
    return {
        "id": sql.Identifier(mapping.id),
        "transaction_id": sql.Identifier(mapping.transaction_id),
        "kafka_topic": sql.SQL("coalesce({}, '')").format(_text(mapping.kafka_topic)),
        "kafka_key": sql.SQL("coalesce({}, '')").format(_text(mapping.kafka_key)),
        "kafka_value": sql.Identifier(value) if value_is_bytes and isinstance(value, str) else _text(value),
        "kafka_header_keys": _texts([in_statement(sql.Literal(name)) for name in mapping.headers]),
        "kafka_header_values": _texts([_text(each) for each in mapping.headers.values()]),
        "create_time": sql.SQL("{}::timestamptz").format(created),
    }


def _text(part: Part) -> sql.Composable:
    named = sql.Literal(part.value) if isinstance(part, Constant) else sql.Identifier(part)
    return sql.SQL("{}::text").format(in_statement(named))


def _texts(parts: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL("ARRAY[{}]::text[]").format(sql.SQL(", ").join(parts))
