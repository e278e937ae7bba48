"""Tables of Postgres, written in bulk: each batch is one transaction.

Promises
- `write` returns once the transaction is durable. A batch that fails leaves nothing behind.
- Inserts and updates both add the row or change it; a delete of a row that is not there does nothing. So writing a
  batch again has the same result as writing it once.
- Several messages of one row have the effect of one after the other, whatever else the batch has.
- A column that a message does not have is left alone.
- Values go as text, which Postgres reads as the column's type: a value that does not fit, too long a text for instance,
  is refused and never cut.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.database import connect, translate
from harvest_lib.errors import AdaptorError, DatabaseUnavailable, MessageRefused
from harvest_lib.pipeline.adaptors.postgres.catalog import refusals, split
from harvest_lib.pipeline.adaptors.postgres.changes import TRUNCATE
from harvest_lib.pipeline.adaptors.postgres.options import PostgresWriting
from harvest_lib.pipeline.adaptors.postgres.values import SETTINGS, text_of
from harvest_lib.pipeline.adaptors.refusal import refusal
from harvest_lib.pipeline.message import Message, Op

# -1 gives a type without its length: NULL would give `character`, and `bit`, which have one character.
_COLUMNS = """
SELECT a.attname::text, format_type(a.atttypid, -1), a.attgenerated <> '',
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attidentity = 'a'
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'f') AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

_KEY = """
SELECT a.attname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE n.nspname = %s AND c.relname = %s ORDER BY array_position(i.indkey::int2[], a.attnum)
"""

_INSERT = """
INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {casts} FROM unnest({arrays}) AS v ({columns})
ON CONFLICT ({key}) DO {action}
"""
_UPDATE = "UPDATE {table} AS t SET {changes} FROM unnest({arrays}) AS v ({columns}) WHERE {matches}"
_DELETE = "DELETE FROM {table} AS t USING unnest({arrays}) AS v ({columns}) WHERE {matches}"


Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a row. `clears`: its state before is of no account. `data`: its columns afterwards, None if it is
    deleted. `is_new`: it is known to have been inserted; else columns that are not in `data` stay."""

    clears: bool
    data: Mapping[str, Any] | None
    is_new: bool = False


def outcomes(keyed: Iterable[tuple[Key, Message]]) -> dict[Key, Outcome]:
    """Return the outcome of each row, in the order in which rows were first touched. Writing each outcome once leaves
    the same rows as writing the messages one after the other."""
    found: dict[Key, Outcome] = {}
    for key, message in keyed:
        if message.op is Op.DELETE:
            found[key] = Outcome(clears=True, data=None)
        else:
            before = found.get(key, Outcome(clears=False, data=None))
            data = {**(before.data or {}), **message.data}
            is_new = before.is_new or message.op is Op.INSERT
            found[key] = Outcome(clears=before.clears, data=data, is_new=is_new)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A table: its columns' types; the columns that name a row, that have to be given, that are never
    changed, and that Postgres makes of others."""

    name: tuple[str, str]
    types: Mapping[str, str]
    key: Sequence[str]
    required: frozenset[str]
    fixed: frozenset[str]
    generated: frozenset[str]

    def __str__(self) -> str:
        return ".".join(self.name)

    def insert(self, columns: Sequence[str]) -> sql.Composed:
        changed = [each for each in columns if each not in self.key and each not in self.fixed]
        sets = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(each)) for each in changed]
        action = sql.SQL("UPDATE SET ") + sql.SQL(", ").join(sets) if sets else sql.SQL("NOTHING")
        return self._fill(_INSERT, columns, key=_listed(self.key), action=action)

    def update(self, columns: Sequence[str]) -> sql.Composed:
        changed = [each for each in columns if each not in self.key and each not in self.fixed]
        sets = [sql.SQL("{} = {}").format(sql.Identifier(each), self._cast(each)) for each in changed or self.key]
        return self._fill(_UPDATE, columns, changes=sql.SQL(", ").join(sets))

    def delete(self) -> sql.Composed:
        return self._fill(_DELETE, self.key)

    def _fill(self, statement: str, columns: Sequence[str], **named: sql.Composable) -> sql.Composed:
        matches = [sql.SQL("t.{} = {}").format(sql.Identifier(each), self._cast(each)) for each in self.key]
        return sql.SQL(statement).format(
            table=sql.Identifier(*self.name),
            columns=_listed(columns),
            casts=sql.SQL(", ").join(map(self._cast, columns)),
            arrays=sql.SQL(", ").join(sql.SQL("${}::text[]").format(sql.SQL(str(n + 1))) for n in range(len(columns))),
            matches=sql.SQL(" AND ").join(matches),
            **named,
        )

    def _cast(self, column: str) -> sql.Composed:
        # Without the type's length: a cast would cut a value that is too long, storing it refuses it.
        return sql.SQL("v.{}::{}").format(sql.Identifier(column), sql.SQL(self.types[column]))


class PostgresWriter:
    """`Writer` to tables that are there."""

    def __init__(self, options: PostgresWriting) -> None:
        self._options = options
        self._connection: psycopg.Connection[Any] | None = None
        self._targets: dict[str, _Target] = {}

    def write(self, messages: Sequence[Message]) -> None:
        try:
            connection = self._connected()
            with connection.transaction():
                for is_command, run in groupby(messages, lambda message: message.op is Op.COMMAND):
                    if is_command:
                        for message in run:
                            self._command(connection, message)
                    else:
                        self._rows(connection, run)
        except UnicodeEncodeError:
            raise refusal(
                "Postgres",
                [message.offset for message in messages],
                evidence="text with something in it that is not Unicode: half of a surrogate pair, or bytes of a "
                "database without an encoding that are not UTF-8",
                remedy="correct it where it was written, or in a transform",
            ) from None  # the cause carries the text
        except psycopg.Error as error:
            self._targets.clear()  # a table may have been changed
            raise _refused(error, messages) from error
        except AdaptorError:
            self._targets.clear()
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _rows(self, connection: psycopg.Connection[Any], messages: Iterable[Message]) -> None:
        by_table: dict[str, list[tuple[Key, Message]]] = defaultdict(list)
        for message in messages:
            if message.op is Op.NOOP:
                continue
            target = self._target(connection, message.namespace)
            by_table[message.namespace].append((_key(target, message), message))
        for namespace, keyed in by_table.items():
            self._write_table(connection, self._targets[namespace], outcomes(keyed))

    def _write_table(self, connection: psycopg.Connection[Any], target: _Target, rows: Mapping[Key, Outcome]) -> None:
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

    def _command(self, connection: psycopg.Connection[Any], message: Message) -> None:
        if message.data != TRUNCATE:
            raise MessageRefused(
                f"message {message.offset} is a command that is not known here",
                evidence=f"namespace {message.namespace}",
                next_step="drop it in a transform, or acknowledge it without sending: `harvest pipeline ack`",
            )
        target = self._target(connection, message.namespace)
        connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(*target.name)))

    def _target(self, connection: psycopg.Connection[Any], namespace: str) -> _Target:
        if namespace not in self._targets:
            self._targets[namespace] = self._find(connection, self._options.table or namespace)
        return self._targets[namespace]

    def _find(self, connection: psycopg.Connection[Any], namespace: str) -> _Target:
        name = split(namespace)
        with refusals(f"to read {namespace}", "check the user's grants"):
            columns = connection.execute(_COLUMNS, name).fetchall()
            key = [each for (each,) in connection.execute(_KEY, name).fetchall()]
        key = list(self._options.key.get(".".join(name), key))
        if not columns:
            raise AdaptorError(
                f"there is no table {'.'.join(name)} to write to",
                evidence="named by `table`" if self._options.table else f"for the namespace {namespace!r}",
                next_step="create it, name another with `table`, or rename the namespace with the transform `route`",
            )
        unknown = sorted(set(key) - {each[0] for each in columns})
        if not key or unknown:
            raise AdaptorError(
                f"nothing identifies a row of {'.'.join(name)}",
                evidence=f"it has no column {', '.join(unknown)}" if unknown else "there is no primary key",
                next_step="add a primary key, or name columns with a unique index in `key`",
            )
        return _Target(
            name=name,
            types={column: type_name for column, type_name, generated, _, _ in columns if not generated},
            key=key,
            required=frozenset(column for column, _, generated, required, _ in columns if required and not generated),
            fixed=frozenset(column for column, _, _, _, is_fixed in columns if is_fixed),
            generated=frozenset(column for column, _, generated, _, _ in columns if generated),
        )

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._targets.clear()
            self._connection = connect(self._options.data_source.conninfo(), SETTINGS)
        return self._connection


def _key(target: _Target, message: Message) -> Key:
    data = message.data
    known = target.types.keys() | target.generated
    unknown = [each for each in data if each not in known] if message.op is not Op.DELETE else []
    missing = [each for each in target.key if data.get(each) is None]
    if not unknown and not missing:
        return tuple(text_of(data[each], target.types[each]) for each in target.key)
    what = f"has no column {', '.join(unknown)}" if unknown else f"needs {', '.join(missing)} to name a row"
    raise MessageRefused(
        f"the table {target} does not take message {message.offset}",
        evidence=f"namespace {message.namespace}, {message.op.name}: the table {what}",
        next_step="add the column, or have a transform (`omit`, `pick`, `rename`) make the message fit",
    )


def _execute(connection: psycopg.Connection[Any], statement: sql.Composed, columns: Sequence[Sequence[Any]]) -> None:
    cursor = psycopg.RawCursor(connection)
    cursor.execute(statement, [list(each) for each in columns], prepare=True)


def _listed(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _refused(error: psycopg.Error, messages: Sequence[Message]) -> Exception:
    """Return the error of refused messages, with those parts of the server's that hold no values."""
    translated = translate(error)
    if isinstance(translated, DatabaseUnavailable):
        return translated
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
