"""Converts decoded changes of committed transactions to messages. It does no input or output: queries are passed in.

- An update of a key becomes a delete of the old row and an insert of the new row. Under replica identity FULL, Postgres
  does not send which columns are the key. If the key has other columns now, or they were renamed, each update that
  changes a value becomes a delete of the old row and an insert of the new row, which is correct for every key.
- An update lacks a large value that it did not change. If the value belongs to the key, or under replica identity FULL,
  the old row has the value. In all other cases, the present value is queried. If the row is gone, the update is left
  out, since a delete of the row follows. If the column is gone, the column is left out of the message.
- A row is never identified by only a part of its key: a change without the whole key is an error.
- A truncated table becomes a command, `{"command": "truncate"}`.
- A table is identified by its oid, not by its name. Columns and keys are as they were at the time of the change. If
  another table takes the name of a followed table, that is an error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, assert_never

from harvest_lib.errors import AdaptorError, PositionLost
from harvest_lib.pipeline.adaptors.postgres.catalog import Table
from harvest_lib.pipeline.adaptors.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Decoded,
    Delete,
    Insert,
    Other,
    Relation,
    Truncate,
    Update,
    Value,
)
from harvest_lib.pipeline.adaptors.postgres.values import reader_of
from harvest_lib.pipeline.message import Op, PipelineMessage

TRUNCATE = {"command": "truncate"}

Row = Sequence[Value]
Fetch = Callable[[Table, Mapping[str, str], Sequence[str]], Mapping[str, Any] | None]
"""A function of a table, a key and columns. It returns the present values of the columns in the row with this key,
without dropped columns. It returns None if there is no such row."""

KeyOf = Callable[[int], Sequence[str]]
"""A function of a table's oid. It returns the columns that identify a row of the table at present."""

_FULL = "f"
_INDEXED = {"d", "i"}
"""Replica identities under which the description of a table marks exactly the columns of the key."""


@dataclass(frozen=True, slots=True)
class _Layout:
    table: Table
    names: Sequence[str]
    key: Sequence[str] | None
    """None if the key's columns at the time of the changes are unknown. The whole row then identifies the row."""
    readers: Sequence[Callable[[str], Any]]


class Changes:
    """Converts decoded changes, which `take` gets in order. `end` is the LSN after the last complete transaction."""

    def __init__(
        self, tables: Sequence[Table], *, base_type: Callable[[int], int], key_of: KeyOf, fetch: Fetch
    ) -> None:
        self._tables = {each.oid: each for each in tables}
        self._base_type = base_type
        self._key_of = key_of
        self._fetch = fetch
        self._layouts: dict[int, _Layout | None] = {}
        self._timestamp = 0
        self.end = 0
        self.commit: Sequence[int] | None = None
        """End LSN, transaction id and commit time (milliseconds since 1970) of the last complete transaction."""
        self._xid = 0
        self.is_open = False
        """True inside a transaction: `take` got the begin of the transaction, and did not get its end yet."""

    def take(self, change: Decoded) -> Sequence[PipelineMessage]:
        match change:
            case Begin():
                self.is_open, self._timestamp, self._xid = True, change.timestamp, change.xid
            case Commit():
                self.is_open, self.end, self.commit = False, change.end, [change.end, self._xid, change.timestamp]
            case Relation():
                self._layouts[change.oid] = self._layout(change)
            case Insert():
                if (layout := self._of(change.oid)) is not None:
                    return [self._message(Op.INSERT, layout, self._row(layout, change.new))]
            case Update():
                if (layout := self._of(change.oid)) is not None:
                    return self._updated(layout, change)
            case Delete():
                if (layout := self._of(change.oid)) is not None:
                    return [self._message(Op.DELETE, layout, self._old(layout, change.old, change.old_is_key))]
            case Truncate():
                layouts = [layout for oid in change.oids if (layout := self._of(oid)) is not None]
                return [self._message(Op.COMMAND, layout, TRUNCATE) for layout in layouts]
            case Other():
                pass
            case _:
                assert_never(change)
        return ()

    def _layout(self, relation: Relation) -> _Layout | None:
        table = self._tables.get(relation.oid)
        if table is None:
            self._require_other(relation)
            return None  # the publication has tables that the pipeline does not read
        names = [column.name for column in relation.columns]
        return _Layout(
            table,
            names,
            self._key_then(table, relation, names),
            [reader_of(self._base_type(column.type_oid)) for column in relation.columns],
        )

    def _key_then(self, table: Table, relation: Relation, names: Sequence[str]) -> Sequence[str] | None:
        """Return the columns that identified a row when the changes were made, None if that is unknown."""
        if relation.identity in _INDEXED:
            return [column.name for column in relation.columns if column.is_key]
        if relation.identity != _FULL:
            return table.key
        is_same = list(self._key_of(table.oid)) == list(table.key) and set(table.key).issubset(names)
        return table.key if is_same else None

    def _require_other(self, relation: Relation) -> None:
        name = f"{relation.schema}.{relation.name}"
        for table in self._tables.values():
            if table.namespace == name:
                raise PositionLost(
                    f"{name} is not the table that it was",
                    evidence=f"changes come of relation {relation.oid}, the table is {table.oid}: it was recreated, or "
                    "another took its name",
                    next_step="drop the slot, move the pipeline's folder away, and start again: all is copied again",
                )

    def _of(self, oid: int) -> _Layout | None:
        try:
            return self._layouts[oid]
        except KeyError:
            raise AdaptorError(
                "Postgres sent a change of a table that it had not described",
                evidence=f"relation {oid}",
                next_step="report it with the server's version",
            ) from None

    def _updated(self, layout: _Layout, update: Update) -> Sequence[PipelineMessage]:
        new, old = update.new, update.old
        if old is not None:
            named = zip(layout.names, old, new, strict=True)  # an unsent value is UNCHANGED, None is a null
            new = [after if after is not UNCHANGED or before is None else before for _, before, after in named]
        if layout.key is None:
            return self._replaced(layout, old, new)
        key = self._key(layout, new)
        fetched = self._fetched(layout, key, new)
        row = [self._row(layout, new, fetched)] if fetched is not None else []
        if old is None or self._key(layout, old) == key:
            return [self._message(Op.UPDATE, layout, data) for data in row]
        gone = self._message(Op.DELETE, layout, self._old(layout, old, update.old_is_key))
        return [gone, *(self._message(Op.INSERT, layout, data) for data in row)]

    def _replaced(self, layout: _Layout, old: Row | None, new: Row) -> Sequence[PipelineMessage]:
        row = self._row(layout, new)
        if old is None or list(old) == list(new):
            return [self._message(Op.UPDATE, layout, row)]
        return [self._message(Op.DELETE, layout, self._row(layout, old)), self._message(Op.INSERT, layout, row)]

    def _fetched(self, layout: _Layout, key: Mapping[str, str], new: Row) -> Mapping[str, Any] | None:
        """Return the present values of columns that Postgres did not send; None if the row is gone."""
        missing = [name for name, value in zip(layout.names, new, strict=True) if value is UNCHANGED]
        return self._fetch(layout.table, key, missing) if missing else {}

    def _old(self, layout: _Layout, old: Row, is_key: bool) -> Mapping[str, Any]:  # noqa: FBT001 - as decoded
        row = self._row(layout, old)
        if layout.key is None:
            return row
        key = self._key(layout, old)
        return {name: row[name] for name in key} if is_key else row

    def _key(self, layout: _Layout, row: Row) -> Mapping[str, str]:
        """Return the whole key of a row, as text. Raises AdaptorError if a column of the key is missing, since the
        other columns may identify another row, or several rows."""
        named, columns = dict(zip(layout.names, row, strict=True)), layout.key or ()
        key = {name: value for name in columns if isinstance(value := named.get(name), str)}
        if key and len(key) == len(columns):
            return key
        missing = [name for name in columns if name not in key]
        raise AdaptorError(
            f"Postgres sent a change of {layout.table.namespace} without all that names its row",
            evidence=f"not sent: {', '.join(missing)}" if missing else "no column names a row",
            next_step="update Postgres to the last release of its version, which sends values of a key that are stored "
            "out of line, or ALTER TABLE … REPLICA IDENTITY FULL; the change itself stays as it is: drop the slot, "
            "move the pipeline's folder away, and start again: all is copied again",
        )

    def _row(self, layout: _Layout, values: Row, fetched: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        return {
            name: read(value) if isinstance(value, str) else fetched.get(name)
            for name, read, value in zip(layout.names, layout.readers, values, strict=True)
            if value is not UNCHANGED or name in fetched
        }

    def _message(self, op: Op, layout: _Layout, data: Mapping[str, Any]) -> PipelineMessage:
        return PipelineMessage(op, self._timestamp, layout.table.namespace, data)
