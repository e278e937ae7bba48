"""Creation of segments in advance: new segments replace the tail, the segment without an upper bound, or follow it.

1. An empty tail is dropped, and in the same transaction segments and a new tail are created instead of it.
2. A tail with records gets an upper bound: a CHECK, added as `NOT VALID`, and validated while writers continue. Then a
   transaction, which reads no record, turns the tail into a segment and creates a new tail after it. The bound is so
   high that no id reaches it before this transaction. Afterwards the sequence jumps to the bound.

The sequence may have gone back to ids whose segments were dropped (TRUNCATE … RESTART IDENTITY). In this case the
missing segments are created first.

Promises
- At every moment every id has a segment, even if the process is killed between two steps. The next run continues.
- The outbox is locked only while catalog rows are written; see `short_locks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import HarvestError, OutboxTableError
from harvest_lib.outbox.checks import validate_checks
from harvest_lib.outbox.native_table import DEFAULT_AHEAD, segment_of, segment_statement, segment_statements, tail_of
from harvest_lib.outbox.segments import segment_queries as queries
from harvest_lib.outbox.segments.segment_list import Segment, Segments, require_owner
from harvest_lib.outbox.short_locks import PATIENCE_SECONDS, Result, exclusively, with_short_locks
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

FAR_IDS = 100_000_000_000
"""Distance in ids from the sequence to the upper bound of a tail that is being split: eleven days at 100,000 records/s.
The sequence skips these ids afterwards; bigint has room for ninety million splits."""

Checkpoint = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensured:
    """The result of `ensure_segments`. `made`: number of segments created. `cut_tail`: True if a tail with records
    became a segment."""

    made: int
    cut_tail: bool = False
    jumped: bool = False
    """True if the sequence skipped the remaining ids of a segment that was made from the tail, or from the whole table
    by a migration."""


def planned_end(connection: psycopg.Connection[Any], table: OutboxTable) -> tuple[int | None, bool]:
    """Return two values for a table that is to become a segment: the planned upper bound, which its CHECK contains
    (None without a CHECK), and True if the CHECK is validated."""
    with translated():
        row = connection.execute(queries.CUT_END, {"segment": str(table), "name": queries.CUT}).fetchone()
    return (row[0], row[1]) if row is not None else (None, False)


def far_end(next_id: int, size: int) -> int:
    """Return an upper bound so high that no id reaches it before the tail is split."""
    return (next_id + FAR_IDS) // size * size


def is_near(end: int, next_id: int) -> bool:
    """Return True if a planned upper bound is so near that ids could reach it, because it was planned long ago."""
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
    """Ensure that at least `ahead` segments with an upper bound exist from the current segment on.

    `size` is the number of ids in a new segment, by default as in the last segment before the tail. `after` is called
    with the name of each step after the step, for tests. Needs the owner's rights and a connection in autocommit.
    Raises DatabaseError if the lock cannot be taken.
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
                f"the last segment of {self.outbox} has an end: writers of later ids would be refused",
                evidence=f"{tail.name} ends at {tail.upper}",
                next_step=f"CREATE TABLE {tail_of(self.outbox)} PARTITION OF {self.outbox} FOR VALUES FROM "
                f"({tail.upper}) TO (MAXVALUE)",
            )
        next_id = segments.next_id(self.connection) if jumped else next_id
        filled = self._fill([*bounded, tail], next_id, self.given_size or _size(bounded)) if bounded else 0
        if filled:
            *bounded, tail = segments.read(self.connection)
        if planned_end(self.connection, tail.table)[0] is None:  # else an earlier run has begun to split the tail
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
        """Create the segments that are missing for the current id of the sequence and for later ids; return their
        number.

        In each gap, `ahead` segments have `size` ids, and a last segment contains the remaining ids of the gap.
        """
        made = 0
        for before, after in pairwise([None, *attached]):
            start = None if before is None else before.upper
            assert after is not None  # noqa: S101 - only the first pair has None, as `before`
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
                    evidence=f"the sequence has gone back, and the table {segment}, which has the name of the missing "
                    "segment, is no segment",
                    next_step="`harvest segments drop` finishes a drop that was begun; if that changes nothing, attach "
                    f"or rename {segment}, and run `harvest segments ensure`",
                )
            self.connection.execute(segment_statement(self.outbox, lower, upper))

    def _replace(self, tail: Segment, next_id: int, missing: int, size: int) -> int:
        """Replace an empty tail by segments and a new tail. Return the number of new segments. If the tail has records,
        change nothing and return 0.

        The ids of the tail that the sequence has already passed get a single segment.
        """
        lower = tail.lower or 0
        behind = max(0, next_id - lower) // size * size

        def change() -> int:
            self._execute(queries.LOCK, table=self.outbox.identifier)
            self._execute(queries.LOCK, table=tail.table.identifier)  # writers may write into the tail directly
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
        """Turn a tail with records into a segment, and create further segments and a new tail after it."""
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
        validate_checks(self.connection, self.outbox)  # otherwise the tail cannot be attached
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
        """Validate the CHECK of the tail. This reads the whole tail, but delays no other session, so it needs no short
        lock."""
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
                next_step="a writer sets ids itself: stop it, give these records other ids, and run the command again",
            ) from error

    def _leave_wide_segment(self, segments: Segments, found: Sequence[Segment], next_id: int) -> bool:
        """If the current segment was made from a tail, move the sequence to the segment's end, and return True. Without
        this move, the segment would stay open permanently."""
        present = next((each for each in found if not each.is_passed(next_id)), None)
        if present is None or present.upper is None or present.upper - next_id < FAR_IDS // 2:
            return False
        if present.lower is not None and next_id < present.lower:  # the sequence went back to ids without a segment
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
    """Return the number of ids in the last segment that has an upper bound. Raises OutboxTableError if there is
    none."""
    last = bounded[-1] if bounded else None
    if last is None or last.upper is None:
        raise OutboxTableError(
            "the size of a segment is not known",
            evidence="there is no segment but the tail",
            next_step="give the size: `harvest segments ensure --segment-size 10000000`",
        )
    return last.upper - (last.lower or 0)
