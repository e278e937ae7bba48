"""The operator that commits business rows and outbox records in one transaction."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.airflow.lineage import outbox_name, table_name
from harvest_lib.airflow.operators.on_outbox import OutboxOperator
from harvest_lib.airflow.operators.raised import permanent
from harvest_lib.airflow.tasks import task_path, tell_outlets
from harvest_lib.errors import HarvestError, OutboxTableError, RecordError
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.append import append
from harvest_lib.outbox.spark_tables import CREATE_LEDGER, LOCK_DDL
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import evidence_of, translated
from harvest_lib.record import OutboxRecord

if TYPE_CHECKING:
    from airflow.sdk import Context

_EXISTS = "SELECT to_regclass(%s) IS NOT NULL"
_ONCE = """
INSERT INTO {ledger} (batch, rows, content_hash, run, staging_seconds, promote_seconds)
VALUES (%s, %s, '', 'airflow', 0, 0) ON CONFLICT DO NOTHING
"""
_TRANSACTION = "SELECT pg_current_xact_id()::text, current_setting('search_path')"
_INSERT = "INSERT INTO {table} ({columns}) VALUES ({values})"
_PERMANENT_CLASSES = frozenset({"22", "23", "42", "P0"})
"""Classes of SQLSTATE: wrong data, violated constraints, wrong statements, and errors that a function raises."""
_FIELDS = ("topic", "key", "value", "headers")


class StatementRefused(HarvestError):
    """Postgres refused a statement or a row of a task: correct `sql` or `rows`."""


class OutboxAppendOperator(OutboxOperator):
    """Commit business rows and the records about them in one transaction: all of them, or none.

    First come the statements of `sql`, then the `rows`, then the `records`. The transaction also writes the task into
    the ledger `<outbox>_batches`, so that all tries of a task append once, even if the answer to a commit is lost; a
    cleared task appends again. Returns the numbers `records` and `rows` (of `rows` alone), and `appended`, False if an
    earlier try had committed. Raises AirflowFailException for what another try would find again, such as a record that
    Kafka would reject, else HarvestError.
    """

    template_fields: Sequence[str] = ("conn_id", "records", "rows", "sql", "parameters")
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers = {"sql": "sql", "records": "json", "rows": "json"}  # noqa: RUF012 - Airflow reads it

    def __init__(
        self,
        *,
        records: Sequence[Mapping[str, Any]] | str = (),
        rows: Mapping[str, Sequence[Mapping[str, Any]]] | str | None = None,
        sql: str | Sequence[str] = (),
        parameters: Mapping[str, Any] | Sequence[Any] | None = None,
        once: bool = True,
        **arguments: Any,
    ) -> None:
        """Make the task. `records` are mappings with `topic`, `key`, `value` (text, a mapping or a list for JSON, or
        None for a tombstone) and `headers`. `rows` maps tables to their new rows, mappings of columns to values. Both
        may be texts of JSON. `sql` is one statement or several, or the name of a file that ends in `.sql`; `parameters`
        are for each of them. With `once=False` no ledger is needed, and a try after a lost answer may append again."""
        super().__init__(**arguments)
        self.records = records
        self.rows = rows or {}
        self.sql = sql
        self.parameters = parameters
        self.once = once

    def execute(self, context: "Context") -> dict[str, Any]:
        """Commit rows and records, and return their numbers."""
        with permanent(RecordError):
            records = [_record(each) for each in _listed(_parsed(self.records, "records"), "records")]
            rows = _rows(_parsed(self.rows, "rows"))
        appended = True
        with self._open() as (config, table, connection), permanent(RecordError, StatementRefused), translated():
            if self.once:
                _ensure_ledger(connection, table)
            with connection.transaction():
                if self.once:
                    appended = _entered(connection, table, task_path(context["ti"], with_clears=True), len(records))
                if appended:
                    self._execute(connection, rows)
                    append(connection, records, table=config.outbox_table)
        done = {"records": len(records), "rows": sum(map(len, rows.values())), "appended": appended}
        self._lineage.written += [outbox_name(config), *(table_name(config, name) for name in rows)]
        by = "committed" if appended else "an earlier try of this task had committed"
        self.log.info("%s: %d records and %d rows", by, done["records"], done["rows"])
        tell_outlets(self, context, done)
        return done

    def _execute(self, connection: psycopg.Connection[Any], rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Execute the statements and insert the rows. The statements must not end the transaction; the tables of rows
        and records are found as before them."""
        before = connection.execute(_TRANSACTION).fetchone()
        with _refusals_named():
            for statement in [self.sql] if isinstance(self.sql, str) else self.sql:
                connection.execute(statement.encode(), self.parameters)
        after = connection.execute(_TRANSACTION).fetchone()
        if before is None or after is None or after[0] != before[0]:
            raise StatementRefused(
                "a statement of `sql` has ended the transaction",
                evidence="no record was committed; what came before that statement may be",
                next_step="remove BEGIN, COMMIT and ROLLBACK from `sql`, and check what it has written",
            )
        connection.execute("SELECT set_config('search_path', %s, true)", (before[1],))
        with _refusals_named():
            for name, listed in rows.items():
                _insert(connection, name, listed)


def _parsed(given: Any, field: str) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError as error:
        raise RecordError(
            f"{field} is no JSON", evidence=str(error), next_step="give a list, or a template with `| tojson`"
        ) from error


def _record(given: Mapping[str, Any]) -> OutboxRecord:
    if not isinstance(given, Mapping) or not {"topic", "key", "value"} <= given.keys() <= set(_FIELDS):
        named = ", ".join(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise RecordError(
            "a record has other fields than topic, key, value and headers",
            evidence=f"it has {named}",
            next_step='write {"topic": "orders", "key": "o-1", "value": {"total": 9}}',
        )
    return OutboxRecord(**{**given, "headers": given.get("headers") or ()})


def _rows(given: Any) -> dict[str, list[Mapping[str, Any]]]:
    found = {str(table): list(rows) for table, rows in given.items()} if _is_of_lists(given) else None
    if found is None or not all(isinstance(row, Mapping) and row for rows in found.values() for row in rows):
        raise RecordError(
            "rows are no mapping of tables to lists of rows",
            evidence=f"{str(given)[:80]!r}",
            next_step='write {"orders": [{"id": 1, "total": 9}]}',
        )
    return found


def _is_of_lists(given: Any) -> bool:
    return isinstance(given, Mapping) and all(isinstance(each, list | tuple) for each in given.values())


def _listed(given: Any, field: str) -> list[Any]:
    if not isinstance(given, list | tuple):
        raise RecordError(f"{field} are no list", evidence=type(given).__name__, next_step="give a list")
    return list(given)


def _ensure_ledger(connection: psycopg.Connection[Any], table: OutboxTable) -> None:
    if connection.execute(_EXISTS, (str(table.batches),)).fetchone() == (True,):
        return
    try:
        with connection.transaction():
            connection.execute(LOCK_DDL)
            connection.execute(sql.SQL(CREATE_LEDGER).format(ledger=table.batches.identifier))
    except pg.InsufficientPrivilege as error:
        raise OutboxTableError(
            f"the ledger {table.batches} does not exist, and this role may not create it",
            evidence=str(error.diag.message_primary),
            next_step="as the owner: `harvest init --spark`, then what `harvest grants postgres --spark-writer ROLE` "
            "prints; or set once=False",
        ) from error


def _entered(connection: psycopg.Connection[Any], table: OutboxTable, batch: str, count: int) -> bool:
    """Enter the task into the ledger; return False if it was there. A try that runs meanwhile is waited for."""
    statement = sql.SQL(_ONCE).format(ledger=in_statement(table.batches.identifier))
    return connection.execute(statement, (f"airflow/{batch}", count)).rowcount == 1


@contextmanager
def _refusals_named() -> Iterator[None]:
    """Raise StatementRefused for an error of the user's own SQL that another try would find again."""
    try:
        yield
    except psycopg.Error as error:
        is_ours = error.sqlstate is None and isinstance(error, psycopg.ProgrammingError | psycopg.DataError)
        if not is_ours and (error.sqlstate or "")[:2] not in _PERMANENT_CLASSES:
            raise
        raise StatementRefused(
            "Postgres refused a statement or a row of this task",
            evidence=evidence_of(error),
            next_step="correct `sql`, `parameters` or `rows`; with parameters a % is written %%; nothing was committed",
        ) from error


def _insert(connection: psycopg.Connection[Any], table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    with connection.cursor() as cursor:
        for columns, alike in groupby(rows, key=tuple):
            statement = sql.SQL(_INSERT).format(
                table=in_statement(OutboxTable.parse(table).identifier),
                columns=sql.SQL(", ").join(in_statement(sql.Identifier(name)) for name in columns),
                values=sql.SQL(", ").join(sql.Placeholder() for _ in columns),
            )
            cursor.executemany(statement, [[_adapted(value) for value in row.values()] for row in alike])


def _adapted(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value
