"""The plan of a write: made from a declaration, a frame's schema and the existing tables, and checked before the write.

Nothing here starts a Spark job. All errors that the schema reveals are raised before the first row is read: a column
that is missing or that no table takes, a type that the table does not take, an invalid outbox, an unusable staging
table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql
from pyspark.sql import types as spark

from harvest_lib.errors import ConfigError, OutboxTableError
from harvest_lib.grants.needed import creating
from harvest_lib.outbox.spark_tables import CREATE_LEDGER, LOCK_DDL
from harvest_lib.spark.sink import queries
from harvest_lib.spark.sink.columns import BOOKKEEPING, StagedColumn, staged_columns
from harvest_lib.spark.sink.database import (
    TableColumn,
    Tables,
    columns_of,
    place_of,
    postgres_errors,
    staged_apart,
)
from harvest_lib.spark.sink.queries import as_sql
from harvest_lib.spark.sink.records import Records
from harvest_lib.spark.sink.staging_tables import sweep_staging

_OUTBOX_COLUMNS = (
    "id",
    "create_time",
    "kafka_topic",
    "kafka_key",
    "kafka_value",
    "kafka_header_keys",
    "kafka_header_values",
    "leader_id",
)


_COMMANDS = (
    "`harvest init --spark`, then run the output of `harvest grants postgres --spark-writer ROLE`, both with "
    "`--spark-table` for each business table"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """The columns of a write, and the columns of both target tables by name. `business` is empty without a table."""

    tables: Tables
    records: Records
    columns: tuple[StagedColumn, ...]
    business: Mapping[str, TableColumn]
    outbox: Mapping[str, TableColumn]
    batch_column: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.columns)

    @property
    def filled_columns(self) -> tuple[TableColumn, ...]:
        """Columns of the record that the business table has, but the frame lacks. The sink computes their defaults
        once, so that business row and record have the same value."""
        used = self.records.columns(self.names)
        return tuple(each for name, each in self.business.items() if name in used and name not in self.names)

    def type_of(self, name: str) -> str:
        """Return a column's Postgres type in the record: its type in the business table, else its type in the frame."""
        if name in self.business:
            return self.business[name].type
        return next(each.type for each in self.columns if each.name == name)


def checked_plan(
    connection: psycopg.Connection,
    tables: Tables,
    records: Records,
    schema: spark.StructType,
    *,
    batch_column: str | None = None,
    by_copy: bool = False,
) -> WritePlan:
    """Check everything and return the plan; change nothing. Raises ConfigError or OutboxTableError."""
    tables = staged_apart(connection, tables)
    plan = WritePlan(
        tables=tables,
        records=records,
        columns=staged_columns(schema, by_copy=by_copy, headers_column=records.headers_column),
        business=_business(connection, tables),
        outbox=check_outbox(connection, tables),
        batch_column=batch_column,
    )
    _check_columns(plan)
    _check_types(connection, plan)
    return plan


def make_tables(connection: psycopg.Connection, plan: WritePlan, *, staging: bool = True) -> None:
    """Create the ledger, and if `staging` the staging table, unless they exist.

    Raises OutboxTableError for a staging table of another version of the sink, and for one with other columns that a
    run still uses.
    """
    tables = plan.tables
    named = creating(connection, "the sink's tables", tables.staging, commands=_COMMANDS)
    with named, postgres_errors("making the sink's tables"), connection.transaction():
        connection.execute(LOCK_DDL)
        if place_of(connection, tables.ledger) is None:  # IF NOT EXISTS alone would require the privilege to create
            connection.execute(tables.fill(sql.SQL(CREATE_LEDGER)))
        if not staging or _staging_fits(connection, plan):
            return
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(each.staged), as_sql(each.type)) for each in plan.columns
        )
        names = sql.SQL(", ").join(sql.Identifier(each.staged) for each in plan.columns)
        row_hash = sql.SQL(queries.ROW_HASH).format(names=names) if tables.hashes_rows else sql.SQL("")
        connection.execute(tables.fill(sql.SQL(queries.CREATE_STAGING), columns=columns, row_hash=row_hash))


def check_outbox(connection: psycopg.Connection, tables: Tables) -> dict[str, TableColumn]:
    """Return the columns of the outbox table by name. Raises OutboxTableError if the table has neither layout of an
    outbox."""
    name = tables.outbox.as_string(None)
    columns = {each.name: each for each in columns_of(connection, tables.outbox)}
    next_step = "create it with `harvest init`, or name the right table by --outbox"
    if not columns:
        raise OutboxTableError(f"the outbox table {name} does not exist", next_step=next_step)
    if missing := [column for column in _OUTBOX_COLUMNS if column not in columns]:
        raise OutboxTableError(
            f"the table {name} is not an outbox table", evidence=f"it lacks {', '.join(missing)}", next_step=next_step
        )
    return columns


def _business(connection: psycopg.Connection, tables: Tables) -> dict[str, TableColumn]:
    if tables.business is None:
        return {}
    columns = {each.name: each for each in columns_of(connection, tables.business)}
    if not columns:
        raise ConfigError(
            f"the business table {tables.business.as_string(None)} does not exist",
            field="--table",
            next_step="create it, name another, or leave it out to write records alone",
        )
    return columns


def _check_columns(plan: WritePlan) -> None:
    frame, used = plan.names, plan.records.columns(plan.names)
    fillable = {name for name, each in plan.business.items() if each.filled_by is not None}
    for name, option in used.items():
        if name not in frame and name not in fillable:
            raise _lacks(name, option, frame)
    for name in plan.records.order_by:
        if name not in frame:
            raise _lacks(name, "--order-by", frame)
    for name, option in plan.records.row_columns.items():
        if name not in frame:
            raise _lacks(name, option, frame)
    if not plan.business:
        if plan.batch_column is not None:
            raise ConfigError(
                "there is no table for the batch's id", field="--batch-column", next_step="name the table by --table"
            )
        return
    table = plan.tables.business.as_string(None) if plan.tables.business else ""
    for name in frame:
        if name not in plan.business and name not in used and name not in plan.records.order_by:
            raise ConfigError(
                f"the frame's column {name!r} has no place: neither {table} nor the record has it",
                field=name,
                next_step="drop it from the frame, add it to the table, or name it for key, value, header or order",
            )
    given = {*frame, plan.batch_column}
    if plan.batch_column is not None and (plan.batch_column not in plan.business or plan.batch_column in frame):
        raise ConfigError(
            f"{plan.batch_column!r} cannot take the batch's id: it is not a column of {table}, or the frame has it",
            field="--batch-column",
            next_step="name a column of the table that the frame leaves out",
        )
    for name, each in plan.business.items():
        if each.required and each.filled_by is None and not each.generated and name not in given:
            raise ConfigError(
                f"{table} requires a column {name!r}, which the frame lacks",
                field=name,
                next_step="add it to the frame, or give it a default in the table",
            )
        if each.generated and name in frame:
            raise ConfigError(
                f"the column {name!r} of {table} is computed by Postgres and cannot be written",
                field=name,
                next_step="drop it from the frame",
            )


def _lacks(name: str, option: str, frame: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"there is no column {name!r}",
        field=option,
        next_step=f"name one of the frame: {', '.join(frame)}, or a column that the business table fills itself",
    )


def _check_types(connection: psycopg.Connection, plan: WritePlan) -> None:
    pairs = [
        (each.name, each.type, plan.business[each.name].type) for each in plan.columns if each.name in plan.business
    ]
    values = {
        "names": [name for name, _, _ in pairs],
        "given": [given for _, given, _ in pairs],
        "wanted": [wanted for _, _, wanted in pairs],
    }
    with postgres_errors("comparing the types of columns"):
        wrong = connection.execute(queries.MISFITS, values).fetchall()
    if wrong:
        raise ConfigError(
            "; ".join(
                f"column {name!r} is {given} in the frame and {wanted} in the table" for name, given, wanted in wrong
            ),
            field=wrong[0][0],
            next_step="cast it in the frame",
        )
    _check_used(plan)


def _check_used(plan: WritePlan) -> None:
    """Check the types of the columns that records are made of. Each use of a column is judged by itself."""
    records = plan.records
    is_key, is_value = isinstance(records.key, str), isinstance(records.value, str)
    uses = [(name, "--key", is_key) for name in records.key_columns]
    uses += [(name, "--value", is_value) for name in records.value_columns(plan.names)]
    uses += [(name, "--header", False) for name in records.headers.values() if isinstance(name, str)]
    uses += [(name, "--order-by", True) for name in records.order_by]
    uses += [(name, option, False) for name, option in records.row_columns.items() if name != records.headers_column]
    content = {each.name: each.content for each in plan.columns}
    for name, option, takes_bytes in uses:
        if content.get(name) == "headers":
            raise ConfigError(
                f"column {name!r} holds the records' headers, and nothing else",
                field=option,
                next_step="copy the column in the frame, or leave it out there",
            )
        if content.get(name) == "json" and option != "--value":
            raise ConfigError(
                f"column {name!r} is a map, a struct, a variant or an array of them, which belongs into the value",
                field=option,
                next_step="name a column of the frame with a number or a text",
            )
        if plan.type_of(name) == "bytea" and not takes_bytes:
            raise ConfigError(
                f"column {name!r} holds bytes, and text is needed",
                field=option,
                next_step="decode it in the frame (base64, hex, decode), or make it the only column of key or value",
            )
    if records.headers_column is not None and records.headers_column in plan.business:
        raise ConfigError(
            f"column {records.headers_column!r} holds the records' headers, and the business table has it too",
            field="--headers-column",
            next_step="rename it in the frame",
        )
    at = records.create_time_column
    if at is not None and (not plan.type_of(at).startswith("timestamp") or plan.type_of(at).endswith("[]")):
        raise ConfigError(
            f"column {at!r} is {plan.type_of(at)}, and holds the records' times",
            field="--create-time-column",
            next_step="cast it to a timestamp in the frame",
        )


def _staging_fits(connection: psycopg.Connection, plan: WritePlan) -> bool:
    """Return True if the staging table has the frame's columns. A table with other columns is dropped if it is idle."""
    found = {each.name: each.type for each in columns_of(connection, plan.tables.staging)}
    if not found:
        return False
    name = plan.tables.staging.as_string(None)
    bookkeeping = {column: kind for column, kind in found.items() if column in BOOKKEEPING}
    if bookkeeping != BOOKKEEPING:
        missing = [column for column, kind in BOOKKEEPING.items() if found.get(column) != kind]
        raise OutboxTableError(
            f"the staging table {name} is not of this version of the sink",
            evidence=f"missing, or of another type: {', '.join(missing)}",
            next_step=f"if nothing else uses it, DROP TABLE {name}: its rows were never promoted",
        )
    if found == BOOKKEEPING | {each.staged: each.type for each in plan.columns}:
        return True
    if not _is_idle(connection, plan.tables):
        raise OutboxTableError(
            f"the staging table {name} holds rows of a batch with other columns, which is being written now",
            evidence=f"it has {', '.join(column for column in found if column not in BOOKKEEPING)}; the frame has "
            f"{', '.join(plan.names)}",
            next_step="wait until that batch is promoted, or give frames of other columns a table of their own",
        )
    connection.execute(plan.tables.fill(sql.SQL(queries.DROP_STAGING)))
    return False


def _is_idle(connection: psycopg.Connection, tables: Tables) -> bool:
    """Return True if no run has rows in the staging table. The table is then locked until the transaction ends."""
    sweep_staging(connection, tables=tables)
    try:
        with connection.transaction():
            connection.execute(tables.fill(sql.SQL(queries.LOCK_STAGING)))
    except psycopg.errors.LockNotAvailable:
        return False
    return connection.execute(tables.fill(sql.SQL(queries.ANY_STAGED))).fetchone() is None
