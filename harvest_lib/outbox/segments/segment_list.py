"""The segments of a native table: lists them, closes them, and finds records that a snapshot does not see.

A segment is *open* until it is *closed*. It is closed if the sequence is past its upper bound, and every transaction
that could have drawn an id of the segment has ended. At the moment when a poll first sees the sequence past the bound,
such a transaction has a lock on the outbox (an INSERT takes the lock before it draws an id; prepared transactions
count), or it has a transaction id. This poll stores these transactions in a row of `<outbox>_segments`. A later poll
closes the segment after all of them have ended.

A sequence can go back (TRUNCATE … RESTART IDENTITY), and can pass a segment again between two polls. So the row of a
segment is valid only if the sequence is past the segment, and sequence and segment have the same files (filenodes) as
in the row. Each reading of the list checks both conditions. The row also becomes invalid when the segment has a record
of a transaction that began after the closing. A segment with an invalid row is open until it is closed again.

Promises
- No record is inserted into a closed segment, except a parked record that is put back.
- `has_unseen` is true if any record of the segment is not visible in the given snapshot.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError
from harvest_lib.outbox.segments import segment_queries as queries
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

_BOUNDS = re.compile(r"FOR VALUES FROM \('?(MINVALUE|-?\d+)'?\) TO \('?(MAXVALUE|-?\d+)'?\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A partition of the outbox: the ids from `lower` up to, but not including, `upper`. None means no bound."""

    table: OutboxTable
    lower: int | None
    upper: int | None
    detaching: bool
    """True if the segment is being detached: the detaching waits for sessions that use the outbox."""
    passed_at: datetime | None
    """The time at which a poll first saw the sequence past the upper bound."""
    closed_at: datetime | None
    files: str = ""
    """The filenodes of the sequence and of the segment. If they change, the ids began again, or the segment was
    emptied. Empty if unknown."""

    @property
    def name(self) -> str:
        return self.table.parts[-1]

    @property
    def within(self) -> sql.Composed:
        """SQL condition that is true exactly for the ids of the segment."""
        lower = sql.SQL("id >= {}").format(self.lower) if self.lower is not None else sql.SQL("true")
        upper = sql.SQL("id < {}").format(self.upper) if self.upper is not None else sql.SQL("true")
        return sql.SQL("{} AND {}").format(lower, upper)

    def is_passed(self, next_id: int) -> bool:
        """Return True if the sequence, whose next id is `next_id`, has passed all ids of the segment."""
        return self.upper is not None and next_id >= self.upper


def require_owner(connection: psycopg.Connection[Any], outbox: OutboxTable) -> None:
    """Raise DatabaseAccessDenied unless this role has the owner's rights: no grant allows a role to create, attach and
    drop segments."""
    with translated():
        row = connection.execute(queries.OWNER, (str(outbox),)).fetchone()
    if row is not None and not row[1]:
        raise DatabaseAccessDenied(
            f"only its owner may change the segments of {outbox}",
            evidence=f"the table belongs to {row[0]!r}, and the user is {connection.info.user!r}",
            next_step=f"run `harvest segments` as {row[0]!r}, from cron: HARVEST_DSN names another user",
        )


class Segments:
    """The segments of a native outbox, and their rows in `<outbox>_segments`."""

    def __init__(self, outbox: OutboxTable) -> None:
        self.outbox = outbox

    def read(self, connection: psycopg.Connection[Any]) -> Sequence[Segment]:
        """Return all segments, ascending by id. Raises OutboxTableError if the table is not native.

        If this role may not read the sequence, `passed_at` and `closed_at` are not checked against it.
        """
        placed = self.outbox.placed(connection)
        statement = sql.SQL(queries.LIST).format(segments=in_statement(placed.segments.identifier))
        with translated():
            rows = connection.execute(statement, {"outbox": str(placed)}).fetchall()
        found = [_segment(self.outbox, row) for row in rows]
        if not found:
            raise OutboxTableError(
                f"the table {self.outbox} has no segments",
                evidence=f"it has the {self.outbox.kind(connection)} layout and no partition",
                next_step="turn it into the native table with `harvest migrate`",
            )
        if any(each.passed_at is not None for each in found) and self._may_read_sequence(connection):
            next_id = self.next_id(connection)  # read after the list, so that a growing sequence is past these segments
            found = [
                each if each.is_passed(next_id) else replace(each, passed_at=None, closed_at=None) for each in found
            ]
        return sorted(found, key=lambda segment: -(2**63) if segment.lower is None else segment.lower)

    def _may_read_sequence(self, connection: psycopg.Connection[Any]) -> bool:
        with translated():
            row = connection.execute(queries.READABLE_SEQUENCE, {"outbox": str(self.outbox)}).fetchone()
        return row == (True,)

    def size_bytes(self, connection: psycopg.Connection[Any], segment: Segment) -> int:
        """Return the size of a segment on disk, indexes included."""
        with translated():
            row = connection.execute(queries.BYTES, (str(segment.table),)).fetchone()
        return row[0] if row is not None else 0

    def sequence(self, connection: psycopg.Connection[Any]) -> OutboxTable:
        """Return the name of the sequence of the ids."""
        with translated():
            row = connection.execute(queries.SEQUENCE, {"outbox": str(self.outbox)}).fetchone()
        if row is None or row[0] is None:
            raise OutboxTableError(
                f"{self.outbox} owns no sequence for its ids",
                evidence="pg_get_serial_sequence finds no sequence for the column id",
                next_step=f"name the sequence of its default: ALTER SEQUENCE … OWNED BY {self.outbox}.id",
            )
        return OutboxTable(tuple(_unquoted(row[0])))

    def next_id(self, connection: psycopg.Connection[Any]) -> int:
        """Return the lowest id that the sequence has not given out."""
        sequence = self.sequence(connection)
        try:
            with translated():
                row = connection.execute(sql.SQL(queries.NEXT_ID).format(sequence=sequence.identifier)).fetchone()
        except DatabaseAccessDenied as error:
            raise DatabaseAccessDenied(
                f"the user {connection.info.user!r} may not read the sequence {sequence}",
                evidence=error.evidence,
                next_step=f"GRANT SELECT ON SEQUENCE {sequence} TO {sql.Identifier(connection.info.user).as_string()}",
            ) from error
        return row[0] if row is not None else 0

    def close_passed(self, connection: psycopg.Connection[Any]) -> Sequence[Segment]:
        """Store which segments the sequence has passed, close the passed segments without writers, and return all
        segments.

        A segment is reopened, and its row invalidated, if the sequence is inside or before the segment again, or has
        passed it again.

        Needs a connection in autocommit: each poll needs a separate transaction.
        """
        segments, next_id = self.read(connection), self.next_id(connection)
        placed = self.outbox.placed(connection)
        written = self._written_since(connection, placed.segments, segments)
        ahead = [each.name for each in segments if each.passed_at is None or each.name in written]
        reopen = sql.SQL(queries.REOPEN).format(segments=in_statement(placed.segments.identifier))
        with translated():
            connection.execute(reopen, {"names": ahead})
        passed = [
            each for each in segments if (each.closed_at is None or each.name in ahead) and each.is_passed(next_id)
        ]
        if not passed:
            return segments
        for schema in {each.table.parts[0] for each in passed}:
            values = {
                "names": [each.name for each in passed if each.table.parts[0] == schema],
                "schema": schema,
                "outbox": str(placed),
            }
            with translated():
                for query in (queries.NOTE, queries.CLOSE):
                    connection.execute(sql.SQL(query).format(segments=in_statement(placed.segments.identifier)), values)
        return self.read(connection)

    def _written_since(
        self, connection: psycopg.Connection[Any], notes: OutboxTable, segments: Sequence[Segment]
    ) -> frozenset[str]:
        """Return the names of closed segments with a record of a transaction that began after the closing."""
        closed = [each for each in segments if each.closed_at is not None and not each.detaching]
        if not closed:
            return frozenset()
        statements = [
            sql.SQL(queries.WRITTEN_SINCE).format(
                segments=notes.identifier, name=sql.Literal(each.name), table=each.table.identifier
            )
            for each in closed
        ]
        with translated():  # without parameters, so a % in a name stays a %
            rows = connection.execute(sql.SQL(" UNION ALL ").join(statements)).fetchall()
        return frozenset(name for (name,) in rows)

    def is_as_noted(self, connection: psycopg.Connection[Any], segment: Segment) -> bool:
        """Return True if the files of sequence and segment are still the same as when `segment` was read: the ids did
        not begin again, and no TRUNCATE emptied the segment."""
        values = {"outbox": str(self.outbox.placed(connection)), "segment": str(segment.table)}
        with translated():
            row = connection.execute(queries.FILES, values).fetchone()
        return not segment.files or row == (segment.files,)

    def waited_for(self, connection: psycopg.Connection[Any], segment: Segment) -> Sequence[str]:
        """Return the sessions and transactions, as texts, that prevent a passed segment from being closed."""
        placed = self.outbox.placed(connection)
        statement = sql.SQL(queries.WAITED_FOR).format(segments=in_statement(placed.segments.identifier))
        values = {"name": segment.name, "schema": segment.table.parts[0]}
        with translated():
            return [row[0] for row in connection.execute(statement, values).fetchall()]

    def has_unseen(
        self, connection: psycopg.Connection[Any], segment: Segment, low_watermark: str, *, by_outbox: bool = False
    ) -> bool:
        """Return True if a segment has a record that is not visible in the snapshot `low_watermark`.

        `by_outbox` reads the records through the outbox, for roles that have grants only on the outbox. Use it in a
        transaction with `enable_sort` off, because a sort, chosen with stale statistics, would read the whole segment.
        """
        table, within = (
            (self.outbox, segment.within) if by_outbox and not segment.detaching else (segment.table, sql.SQL("true"))
        )
        statement = sql.SQL(queries.UNSEEN).format(table=in_statement(table.identifier), within=within)
        with translated():
            row = connection.execute(statement, {"low_watermark": low_watermark}).fetchone()
        return row is not None and bool(row[0])


def _segment(outbox: OutboxTable, row: tuple[Any, ...]) -> Segment:
    name, schema, bounds, detaching, passed_at, closed_at, files = row
    match = _BOUNDS.fullmatch(bounds or "")
    if match is None:
        raise OutboxTableError(
            f"the segments of {outbox} are not cut by id",
            evidence=f"the partition {name} has the bounds {bounds!r}",
            next_step="detach a default partition, or compare the table with `harvest init --print`",
        )
    lower, upper = match.groups()
    return Segment(
        table=OutboxTable((schema, name)),
        lower=None if lower == "MINVALUE" else int(lower),
        upper=None if upper == "MAXVALUE" else int(upper),
        detaching=detaching,
        passed_at=passed_at,
        closed_at=closed_at,
        files=files,
    )


def _unquoted(name: str) -> list[str]:
    """Split the name that pg_get_serial_sequence returns, and remove the quotes of its identifiers."""
    parts = re.findall(r'"((?:[^"]|"")*)"|([^."]+)', name)
    return [quoted.replace('""', '"') or plain for quoted, plain in parts]
