"""Segments are created before they are needed: the tail, which has no end, is split before the sequence gets there.

1. A tail that was never written into is dropped, and segments and a new tail are made in its place, in one transaction.
2. One that was gets an end: a CHECK that it has no ids from there on, added without looking (`NOT VALID`), then
   validated, while everybody writes on; it becomes the last segment before a new tail in one transaction, in which
   nothing is read. The end is so far away that nobody gets there before; afterwards the sequence jumps there.

A sequence that went back below all segments that are there (TRUNCATE … RESTART IDENTITY, once the first were dropped)
finds none: those that are missing are made first.

Promises
- There is a segment for every id at every moment, also if this is killed between any two steps; the next run goes on.
- The outbox is locked for others while catalog rows are written, and for no longer; see `short_locks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.database import in_statement, translated
from harvest_lib.errors import HarvestError, OutboxTableError
from harvest_lib.outbox import segment_queries as queries
from harvest_lib.outbox.checks import validate_checks
from harvest_lib.outbox.native_table import DEFAULT_AHEAD, segment_of, segment_statement, segment_statements, tail_of
from harvest_lib.outbox.segments import Segment, Segments, require_owner
from harvest_lib.outbox.short_locks import PATIENCE_SECONDS, Result, exclusively, with_short_locks
from harvest_lib.outbox.table import OutboxTable

FAR_IDS = 100_000_000_000
"""Ids between the sequence and the end of a tail that is being cut: at 100,000 records/s, eleven days' worth. They are
skipped afterwards; there is room for ninety million such cuts."""

Checkpoint = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensured:
    """The result: the number of segments made, and True if the tail had records and became one of them."""

    made: int
    cut_tail: bool = False
    jumped: bool = False
    """True if the sequence skipped the rest of a segment that was a tail, or a table before it was migrated."""


def planned_end(connection: psycopg.Connection[Any], table: OutboxTable) -> tuple[int | None, bool]:
    """Return where a table ends that becomes a segment, None without a CHECK that says so, and whether that is
    validated."""
    with translated():
        row = connection.execute(queries.CUT_END, {"segment": str(table), "name": queries.CUT}).fetchone()
    return (row[0], row[1]) if row is not None else (None, False)


def far_end(next_id: int, size: int) -> int:
    """Return an end that no id reaches meanwhile."""
    return (next_id + FAR_IDS) // size * size


def is_near(end: int, next_id: int) -> bool:
    """Return True if an end was planned so long ago that ids could reach it."""
    return end - next_id < FAR_IDS // 10


def ensure_segments(
    connection: psycopg.Connection[Any],
    outbox: OutboxTable,
    *,
    ahead: int = DEFAULT_AHEAD,
    size: int | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
    after: Checkpoint = lambda _step: None,
) -> Ensured:
    """See to it that `ahead` segments with an end, the present one included, are there before the tail.

    `size` is that of new segments, by default that of the last one. `after` is called with each step that was taken,
    for tests. Needs the owner's rights and autocommit. Raises DatabaseError if the lock cannot be had.
    """
    placed = outbox.placed(connection)
    require_owner(connection, placed)
    with exclusively(connection, placed, patience_seconds):
        return _SegmentCreation(connection, placed, ahead, size, patience_seconds, after).run()


@dataclass(frozen=True, slots=True)
class _SegmentCreation:
    connection: psycopg.Connection[Any]
    outbox: OutboxTable
    ahead: int
    given_size: int | None
    patience_seconds: float
    after: Checkpoint

    def run(self) -> Ensured:
        segments = Segments(self.outbox)
        next_id, (*bounded, tail) = segments.next_id(self.connection), segments.read(self.connection)
        jumped = self._leave_wide_segment(segments, [*bounded, tail], next_id)
        if tail.upper is not None:
            raise OutboxTableError(
                f"the last segment of {self.outbox} has an end, so that writers may find none",
                evidence=f"{tail.name} ends at {tail.upper}",
                next_step=f"CREATE TABLE {tail_of(self.outbox)} PARTITION OF {self.outbox} FOR VALUES FROM "
                f"({tail.upper}) TO (MAXVALUE)",
            )
        next_id = segments.next_id(self.connection) if jumped else next_id
        filled = self._fill([*bounded, tail], next_id, self.given_size or _size(bounded)) if bounded else 0
        if filled:
            *bounded, tail = segments.read(self.connection)
        if planned_end(self.connection, tail.table)[0] is None:  # else one was begun
            missing = self.ahead - sum(not each.is_passed(next_id) for each in bounded)
            if missing <= 0:
                return Ensured(made=filled, jumped=jumped)
            if made := self._replace(tail, next_id, missing, self.given_size or _size(bounded)):
                return Ensured(made=filled + made, jumped=jumped)
        size = self.given_size or _size(bounded)
        self._split_tail(segments, tail, size)
        found = segments.read(self.connection)
        jumped = self._leave_wide_segment(segments, found, segments.next_id(self.connection))
        return Ensured(made=filled + self.ahead + 1, cut_tail=True, jumped=jumped)

    def _fill(self, attached: list[Segment], next_id: int, size: int) -> int:
        """Make the segments that are missing where the sequence is, or will be; return how many.

        `ahead` of them have the size, and one the rest of the hole.
        """
        made = 0
        for before, after in pairwise([None, *attached]):
            start = None if before is None else before.upper
            assert after is not None  # noqa: S101 - only the first has none before it
            if after.lower is None or start == after.lower or next_id >= after.lower:
                continue
            first = max(next_id // size * size, 0 if start is None else start)
            ends = [first // size * size + number * size for number in range(1, self.ahead + 1)]
            ends = [*(each for each in ends if each < after.lower), after.lower]
            lowers = [0 if start is None else start, *ends[:-1]]
            self._with_short_locks(partial(self._make_all, list(zip(lowers, ends, strict=True)), next_id))
            made += len(ends)
        return made

    def _make_all(self, bounds: list[tuple[int, int]], next_id: int) -> None:
        for lower, upper in bounds:
            segment = segment_of(self.outbox, lower)
            if segment.exists(self.connection):
                raise OutboxTableError(
                    f"{self.outbox} has no segment for the id {next_id}, so that writers are refused",
                    evidence=f"the sequence has gone back, and {segment}, whose name is that of the one to make, is no "
                    "segment",
                    next_step="`harvest segments drop` finishes a drop that was begun; if that changes nothing, attach "
                    f"or rename {segment}, and run `harvest segments ensure`",
                )
            self.connection.execute(segment_statement(self.outbox, lower, upper))

    def _replace(self, tail: Segment, next_id: int, missing: int, size: int) -> int:
        """Put segments in the place of a tail without records; return how many, 0 if it has some.

        The part of the tail that the sequence has passed becomes one segment.
        """
        lower = tail.lower or 0
        behind = max(0, next_id - lower) // size * size

        def change() -> int:
            self._execute(queries.LOCK, table=self.outbox.identifier)
            self._execute(queries.LOCK, table=tail.table.identifier)  # else a row written straight into it would go too
            row = self.connection.execute(queries.IS_EMPTY, (str(tail.table),)).fetchone()
            if row is None or not row[0]:
                return 0
            self._execute(queries.DROP, segment=tail.table.identifier)
            if behind:
                self.connection.execute(segment_statement(self.outbox, lower, lower + behind))
            self._make(lower + behind, missing, size)
            return missing + bool(behind)

        return self._with_short_locks(change)

    def _split_tail(self, segments: Segments, tail: Segment, size: int) -> None:
        """Turn a tail with records into a segment, and make others behind it."""
        lower, table, cut = tail.lower or 0, tail.table.identifier, sql.Identifier(queries.CUT)
        next_id = segments.next_id(self.connection)
        planned, _ = planned_end(self.connection, tail.table)
        if planned is not None and is_near(planned, next_id):
            self._with_short_locks(lambda: self._execute(queries.DROP_CUT, segment=table, cut=cut))
            planned = None
        end = planned if planned is not None else far_end(next_id, size)
        bounds = {"lower": sql.Literal(lower), "upper": sql.Literal(end)}
        if planned is None:
            self._with_short_locks(lambda: self._execute(queries.ADD_CUT, segment=table, cut=cut, **bounds))
            self.after("added")
        self._validate(tail, end)
        validate_checks(self.connection, self.outbox)  # else the tail could not be attached
        self.after("validated")

        def change() -> None:
            self._execute(queries.LOCK, table=self.outbox.identifier)
            named = segment_of(self.outbox, lower)
            segment = OutboxTable((*tail.table.parts[:-1], named.parts[-1])).identifier
            self._execute(queries.PLAIN_DETACH, segment=table)
            self._execute(queries.RENAME, segment=table, name=sql.Identifier(named.parts[-1]))
            self._execute(queries.ATTACH, segment=segment, **bounds)
            self._execute(queries.DROP_CUT, segment=segment, cut=cut)
            self._make(end, self.ahead, size)

        self._with_short_locks(change)
        self.after("cut")

    def _validate(self, tail: Segment, end: int) -> None:
        """Read the whole tail; nobody waits for that, so no short lock is needed."""
        table, cut = tail.table.identifier, sql.Identifier(queries.CUT)
        try:
            with translated():
                self._execute(queries.VALIDATE_CUT, segment=table, cut=cut)
        except HarvestError as error:
            if not isinstance(error.__cause__, psycopg.errors.CheckViolation):
                raise
            self._with_short_locks(lambda: self._execute(queries.DROP_CUT, segment=table, cut=cut))
            raise OutboxTableError(
                f"there are records in {tail.table} whose ids the sequence never gave out",
                evidence=f"ids at or above {end}, or below {tail.lower or 0}",
                next_step="somebody sets ids: stop that, give those records others, and run the command again",
            ) from error

    def _leave_wide_segment(self, segments: Segments, found: Sequence[Segment], next_id: int) -> bool:
        """Move the sequence to the end of a segment that was a tail: it would stay open permanently."""
        present = next((each for each in found if not each.is_passed(next_id)), None)
        if present is None or present.upper is None or present.upper - next_id < FAR_IDS // 2:
            return False
        if present.lower is not None and next_id < present.lower:  # it went back to where there is no segment
            return False
        sequence = segments.sequence(self.connection)
        statement = sql.SQL(queries.MOVE_SEQUENCE).format(sequence=in_statement(sequence.identifier))
        values = {"sequence": str(sequence), "id": present.upper - 1}
        with translated():
            self.connection.execute(statement, values)
        self.after("moved")
        return True

    def _make(self, lower: int, count: int, size: int) -> None:
        for statement in segment_statements(self.outbox, first=lower, count=count, size=size):
            self.connection.execute(statement)

    def _with_short_locks(self, change: Callable[[], Result]) -> Result:
        return with_short_locks(self.connection, self.outbox, change, patience_seconds=self.patience_seconds)

    def _execute(self, query: str, **names: sql.Composable) -> None:
        self.connection.execute(sql.SQL(query).format(outbox=self.outbox.identifier, **names))


def _size(bounded: list[Segment]) -> int:
    """Return the size of the last segment that has an end."""
    last = bounded[-1] if bounded else None
    if last is None or last.upper is None:
        raise OutboxTableError(
            "it is not known how large a segment is to be",
            evidence="there is none but the tail",
            next_step="give the size: `harvest segments ensure --segment-size 10000000`",
        )
    return last.upper - (last.lower or 0)
