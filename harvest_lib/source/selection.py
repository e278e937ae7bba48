"""Selection of a subscription's records and columns: the parts of SQL statements that depend on the configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.config.columns import ColumnMapping, Constant, Part
from harvest_lib.outbox.row_security import guarded
from harvest_lib.postgres.database import in_statement
from harvest_lib.source.pg_snapshot import Snapshot

COLUMNS: Mapping[str, sql.Composable] = {
    "id": sql.Identifier("id"),
    "transaction_id": sql.Identifier("transaction_id"),
    "kafka_topic": sql.Identifier("kafka_topic"),
    "kafka_key": sql.Identifier("kafka_key"),
    "kafka_value": sql.Identifier("kafka_value"),
    "kafka_header_keys": sql.Identifier("kafka_header_keys"),
    "kafka_header_values": sql.Identifier("kafka_header_values"),
    "create_time": sql.Identifier("create_time"),
}
"""The column of the native table for each field of a record."""

_ROW = ("id", "kafka_topic", "kafka_key", "kafka_value", "kafka_header_keys", "kafka_header_values")
_PARTS = ("id", "transaction_id", "kafka_topic", "kafka_key", "create_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A table, its columns, and a filter. The filter is a list of SQL conditions without parameters, each % doubled.

    `columns` maps each field of a record (see `COLUMNS`) to an SQL expression over the columns of the table.
    """

    table: sql.Identifier
    columns: Mapping[str, sql.Composable] = field(default_factory=lambda: COLUMNS)
    conditions: Sequence[sql.Composable] = ()
    guard: sql.Composable | None = None
    """Expression that makes a statement fail if row security would hide rows: see `harvest_lib.outbox.row_security`."""

    def fill(
        self,
        statement: str,
        conditions: Sequence[sql.Composable] | None = None,
        columns: Sequence[str] = _ROW,
    ) -> sql.Composed:
        """Fill in a statement: {table}, {id}, {transaction_id}, {create_time}, {columns} (`columns`, by default those
        of a `Row`), {parts} (ids, topic, key and time) and {filter}. The filter begins with AND. If `conditions` are
        given, they replace the conditions of the selection."""
        required = [
            sql.SQL(" AND ({})").format(each) for each in (self.conditions if conditions is None else conditions)
        ]
        filled = sql.SQL(statement).format(
            table=in_statement(self.table),
            id=in_statement(self.columns["id"]),
            transaction_id=in_statement(self.columns["transaction_id"]),
            create_time=in_statement(self.columns["create_time"]),
            columns=self._listed(columns),
            parts=self._listed(_PARTS),
            filter=sql.Composed(required),
        )
        return guarded(filled, self.guard)

    def _listed(self, names: Sequence[str]) -> sql.Composable:
        listed = [sql.SQL("{} AS {}").format(in_statement(self.columns[each]), sql.Identifier(each)) for each in names]
        return sql.SQL(", ").join(listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionFilter:
    """The records that a subscription reads, and the optional snapshot at which it ends permanently."""

    selection: Selection
    until: Snapshot | None = None


FilterLookup = Callable[[psycopg.Connection[Any], Selection], SubscriptionFilter]
"""Function that is called with each new connection and the configured selection. It returns the filter to use."""


def columns_of(mapping: ColumnMapping, *, value_is_bytes: bool = False) -> Mapping[str, sql.Composable]:
    """Return the SQL expression of each field of a record, for statements with parameters. All fields become text,
    except a value that is bytes. A null key or topic becomes an empty text, so that each record belongs to a shard; an
    empty topic is refused later."""
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
