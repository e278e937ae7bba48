"""Rotation: it moves writers from the current segment to the next segment, although not all ids are used.

Retention drops whole segments. So without rotation, a table with few records would keep its records for years. A
rotation skips the remaining ids of the segment.

The sequence is moved under a lock that excludes writers. Without the lock, ids that writers draw between the reading
and the setting of the sequence could be given out twice. The lock is requested as in `short_locks`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.outbox.native_table import DEFAULT_AHEAD
from harvest_lib.outbox.segments import segment_queries as queries
from harvest_lib.outbox.segments.creation import ensure_segments
from harvest_lib.outbox.segments.segment_list import Segment, Segments, require_owner
from harvest_lib.outbox.short_locks import PATIENCE_SECONDS, exclusively, with_short_locks
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotated:
    """The result of a rotation: the segment into which no further records are written, and the next id."""

    segment: str
    next_id: int


def rotate_segment(
    connection: psycopg.Connection[Any],
    outbox: OutboxTable,
    *,
    older_than_seconds: float | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Rotated | None:
    """Move the sequence to the next segment. Return None if there is nothing to rotate.

    There is nothing to rotate if the current segment has no record. With `older_than_seconds`, there is also nothing to
    rotate if the oldest of its first 100 records is younger, by the database's clock. Missing segments are created.
    Needs the owner's rights and a connection in autocommit. Raises DatabaseError if the lock cannot be taken between
    writers: each writer holds a lock on the sequence until its transaction ends.
    """
    placed = outbox.placed(connection)
    require_owner(connection, placed)
    segments = Segments(placed)
    with exclusively(connection, placed, patience_seconds):
        next_id = segments.next_id(connection)
        present = _present(segments.read(connection), next_id)
        if present.lower is not None and next_id < present.lower:
            return None  # the sequence went back to ids without a segment: `ensure_segments` has to create it first
        if not _is_due(connection, segments, present, older_than_seconds):
            return None
        ensure_segments(connection, placed, ahead=DEFAULT_AHEAD, patience_seconds=patience_seconds)
        sequence = segments.sequence(connection)
        names = {"sequence": in_statement(sequence.identifier)}
        notes = segments.outbox.placed(connection).segments
        keep_notes = sql.SQL(queries.KEEP_NOTES).format(segments=in_statement(notes.identifier))

        def change() -> Rotated:
            named = {"sequence": str(sequence)}
            (file,) = connection.execute(queries.SEQUENCE_FILE, named).fetchone() or (None,)
            connection.execute(sql.SQL(queries.LOCK_SEQUENCE).format(sequence=sequence.identifier))
            connection.execute(keep_notes, {**named, "file": file})
            next_id = segments.next_id(connection)
            now = _present(segments.read(connection), next_id)
            if now.upper is None or now.lower != present.lower:  # writers or a split have moved the sequence since
                return Rotated(segment=present.name, next_id=next_id)
            values = {**named, "id": now.upper - 1}
            connection.execute(sql.SQL(queries.MOVE_SEQUENCE).format(**names), values)
            return Rotated(segment=now.name, next_id=now.upper)

        return with_short_locks(connection, sequence, change, patience_seconds=patience_seconds)


def _present(segments: Sequence[Segment], next_id: int) -> Segment:
    """Return the segment that contains the next id."""
    return next(each for each in segments if each.upper is None or next_id < each.upper)


def _is_due(
    connection: psycopg.Connection[Any], segments: Segments, present: Segment, older_than_seconds: float | None
) -> bool:
    statement = sql.SQL(queries.AGE).format(
        segment=in_statement(present.table.identifier), segments=in_statement(segments.outbox.segments.identifier)
    )
    with translated():
        row = connection.execute(statement, {}).fetchone()
    if row is None or older_than_seconds is None:
        return row is not None
    return row[0] is not None and row[0] >= older_than_seconds
