"""Writer to Postgres tables, in bulk: a transaction per batch.

Promises
- `write` returns when the transaction is durable. A batch that fails has no effect.
- Inserts and updates are upserts, and a delete of a missing row does nothing. So writing a batch twice has the same
  result as writing it once.
- Messages of the same row take effect in their order, even if they come from several namespaces, or have different
  texts for the same key.
- Each batch reads the definitions of its tables again, so that added columns and changed types are respected.
- A column that a message does not have keeps its value.
- Values are sent as text, which Postgres converts to the column's type. A value that does not fit, such as a text that
  is too long, is refused and never truncated.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseUnavailable, MessageRefused
from harvest_lib.pipeline.adaptors.postgres.changes import TRUNCATE
from harvest_lib.pipeline.adaptors.postgres.money import require_two_digits
from harvest_lib.pipeline.adaptors.postgres.options import PostgresWriting
from harvest_lib.pipeline.adaptors.postgres.target import Key, Target, find
from harvest_lib.pipeline.adaptors.postgres.values import SETTINGS, array_of, text_of
from harvest_lib.pipeline.adaptors.refusal import LostWhileWriting, refusal
from harvest_lib.pipeline.message import Op, PipelineMessage
from harvest_lib.postgres import postgres_causes
from harvest_lib.postgres.database import connect
from harvest_lib.postgres.translation import translate


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """Result of all messages of a row in a batch. `clears`: the row was deleted, so its state before the batch is
    dropped. `data`: the columns to write, None if the last message is a delete. `is_new`: one of the messages after the
    last delete is an insert. If `is_new` is False, columns that are not in `data` keep their values."""

    clears: bool
    data: Mapping[str, Any] | None
    is_new: bool = False


def outcomes(keyed: Iterable[tuple[Key, PipelineMessage]]) -> dict[Key, RowOutcome]:
    """Return the outcome of each row, in the order of the rows' first messages. Writing each outcome once results in
    the same rows as writing all messages in order."""
    found: dict[Key, RowOutcome] = {}
    for key, message in keyed:
        if message.op is Op.DELETE:
            found[key] = RowOutcome(clears=True, data=None)
        else:
            before = found.get(key, RowOutcome(clears=False, data=None))
            data = {**(before.data or {}), **message.data}
            is_new = before.is_new or message.op is Op.INSERT
            found[key] = RowOutcome(clears=before.clears, data=data, is_new=is_new)
    return found


class PostgresWriter:
    """`Writer` to existing Postgres tables."""

    def __init__(self, options: PostgresWriting) -> None:
        self._options = options
        self._connection: psycopg.Connection[Any] | None = None
        self._money_is_clear = False

    def write(self, messages: Sequence[PipelineMessage]) -> None:
        try:
            connection = self._connected()
            targets: dict[str, Target] = {}  # for this transaction only: a table may be altered before the next
            with connection.transaction():
                for is_command, run in groupby(messages, lambda message: message.op is Op.COMMAND):
                    if is_command:
                        for message in run:
                            self._command(connection, targets, message)
                    else:
                        self._rows(connection, targets, run)
        except UnicodeEncodeError:
            raise refusal(
                "Postgres",
                [message.offset for message in messages],
                evidence="text with something in it that is not Unicode: half of a surrogate pair, or bytes of a "
                "database without an encoding that are not UTF-8",
                remedy="correct it where it was written, or in a transform",
            ) from None  # the cause contains the text of the message
        except psycopg.Error as error:
            raise _refused(error, messages) from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _rows(
        self, connection: psycopg.Connection[Any], targets: dict[str, Target], messages: Iterable[PipelineMessage]
    ) -> None:
        # Messages are grouped by destination table, not by namespace. If tables may share rows (a family), consecutive
        # messages of one table are a run, and the runs are written in order.
        families: dict[int, list[tuple[Target, list[PipelineMessage]]]] = defaultdict(list)
        for message in messages:
            if message.op is Op.NOOP:
                continue
            target = self._target(connection, targets, message.namespace)
            runs = families[target.family]
            if not runs or runs[-1][0].name != target.name:
                runs.append((target, []))
            runs[-1][1].append(message)
        for runs in families.values():
            for target, run in runs:
                self._write_table(connection, target, outcomes(_keyed(connection, target, run)))

    def _write_table(self, connection: psycopg.Connection[Any], target: Target, rows: Mapping[Key, RowOutcome]) -> None:
        if cleared := [key for key, outcome in rows.items() if outcome.clears]:
            _execute(connection, target.delete(), list(zip(*cleared, strict=True)))
        shapes: dict[tuple[bool, tuple[str, ...]], list[Mapping[str, Any]]] = defaultdict(list)
        for outcome in rows.values():
            if outcome.data is not None:
                columns = tuple(each for each in target.types if each in outcome.data)
                changes_only = not outcome.is_new and not target.required.issubset(columns)
                shapes[changes_only, columns].append(outcome.data)
        for (changes_only, columns), data in shapes.items():
            statement = target.update(columns) if changes_only else target.insert(columns)
            types = target.types
            _execute(connection, statement, [[text_of(row[each], types[each]) for row in data] for each in columns])

    def _command(
        self, connection: psycopg.Connection[Any], targets: dict[str, Target], message: PipelineMessage
    ) -> None:
        if message.data != TRUNCATE:
            raise MessageRefused(
                f"message {message.offset} is a command that is not known here",
                evidence=f"namespace {message.namespace}",
                next_step="drop it in a transform, or acknowledge it without sending: `harvest pipeline ack`",
            )
        target = self._target(connection, targets, message.namespace)
        connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(*target.name)))

    def _target(self, connection: psycopg.Connection[Any], targets: dict[str, Target], namespace: str) -> Target:
        if namespace not in targets:
            found = targets[namespace] = find(connection, namespace, self._options)
            if not self._money_is_clear and found.money:
                require_two_digits(connection, str(found))
                self._money_is_clear = True
        return targets[namespace]

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._money_is_clear = False
            self._connection = connect(self._options.data_source.conninfo(), SETTINGS)
        return self._connection


def _keyed(
    connection: psycopg.Connection[Any], target: Target, messages: Sequence[PipelineMessage]
) -> list[tuple[Key, PipelineMessage]]:
    """Return each message with the key of its row. Messages of a row get the same key, even if the texts differ: `1.0`
    and `1.00` may be the same row."""
    keys = [target.key_of(message) for message in messages]
    distinct = list(dict.fromkeys(keys))
    if len(distinct) > 1 and not all(map(target.is_plain, messages)):
        ranks = _execute(connection, target.ranks(), list(zip(*distinct, strict=True))).fetchall()
        first: dict[Any, Key] = {}
        same = {key: first.setdefault(rank, key) for key, (rank,) in zip(distinct, ranks, strict=True)}
        keys = [same[key] for key in keys]
    return list(zip(keys, messages, strict=True))


def _execute(
    connection: psycopg.Connection[Any], statement: sql.Composed, columns: Sequence[Sequence[str | None]]
) -> psycopg.Cursor[Any]:
    cursor = psycopg.RawCursor(connection)
    return cursor.execute(statement, list(map(array_of, columns)), prepare=True)


def _refused(error: psycopg.Error, messages: Sequence[PipelineMessage]) -> Exception:
    """Return the error for a batch that failed. It contains only those parts of the server's error that have no values
    of rows."""
    translated = translate(error)
    if isinstance(translated, DatabaseUnavailable):
        if postgres_causes.answered(error):
            return translated
        return LostWhileWriting(
            "the connection to Postgres was lost while it was given messages",
            evidence=translated.evidence,
            next_step="see the server's log: it was restarted, or its process ended at one of them",
        )
    named = {
        "column": error.diag.column_name,
        "constraint": error.diag.constraint_name,
        "table": error.diag.table_name,
    }
    evidence = ", ".join(f"{what} {name}" for what, name in named.items() if name)
    namespaces = sorted({message.namespace for message in messages})
    return refusal(
        "Postgres",
        [message.offset for message in messages],
        evidence=f"{type(error).__name__} (SQLSTATE {error.sqlstate}), {evidence or ', '.join(namespaces)}",
        remedy="correct the table or a transform",
    )
