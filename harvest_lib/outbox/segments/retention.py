"""Retention: it drops segments that are no longer needed.

A segment is dropped if all of these conditions hold; they are checked for each segment, just before its drop:
- the segment has been closed (see `segment_list`) for `keep_seconds`, by the database's clock;
- every subscription has passed the segment: all records of the segment are visible in the subscription's low watermark,
  and neither its retention hold nor a record that it has parked is below the segment's upper bound;
- no parked record with an id of the segment could be put back;
- if the outbox has an archive, the segment was archived and has not changed since (see `archived`);
- every earlier segment was dropped;
- the sequence is past the upper bound of the segment.
Without a subscription no segment is dropped, since it is unknown who still reads the records.

A segment is detached concurrently, which delays no session, and then dropped. Transactions with an earlier snapshot (an
audit, a copy, pg_dump) can read the segment until they end. As soon as the detaching begins, Postgres refuses inserts
into the segment: that is why the segment must be closed. The column `leaving` of `<outbox>_segments` records that a
drop has begun. If the process is killed at any step, or a long transaction delays the drop, the next run finishes it.

Until the segment is detached, the sequence may go back, and a record may be inserted. So before the drop, the sequence
and the conditions are checked again, under a lock: the lock prevents changes of the segment and a restart of the
sequence. If the segment is needed after all, it is attached again with all its records.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.outbox.segments import segment_queries as queries
from harvest_lib.outbox.segments.archived import ArchivedSegments
from harvest_lib.outbox.segments.segment_list import Segment, Segments, require_owner
from harvest_lib.outbox.short_locks import PATIENCE_SECONDS, exclusively, with_short_locks
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement, open_session
from harvest_lib.postgres.translation import translated

DEFAULT_KEEP_SECONDS = 86_400.0
_ALL_IDS = (-(2**63), 2**63 - 1)
_RETURNED = "it is open: the sequence has gone back, and is not past its end"
_AGAIN = "it is open: the sequence has gone back, and passed it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping:
    """The result of `drop_passed`: the names of the segments that were dropped (or would be dropped, in a dry run), the
    first segment that was kept, and the reason."""

    dropped: Sequence[str]
    kept: str = ""
    because: str = ""
    held_segments: int = 0
    held_bytes: int = 0
    """Number and size on disk (`held_segments`, `held_bytes`) of the closed segments that are kept although they are
    old enough, because the first of them is still needed."""


def drop_passed(
    connection: psycopg.Connection[Any],
    outbox: OutboxTable,
    *,
    keep_seconds: float = DEFAULT_KEEP_SECONDS,
    dry_run: bool = False,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Dropping:
    """Drop the segments that every subscription has passed and that were closed more than `keep_seconds` ago.

    Needs the owner's rights and a connection in autocommit. Raises DatabaseError if other sessions use the table for
    longer than `patience_seconds`. The segment is then already detached for new transactions, and the next run finishes
    the drop.
    """
    placed = outbox.placed(connection)
    if not dry_run:
        require_owner(connection, placed)
    # A record or a subscription that row security hides would seem not to exist.
    check_all_rows(connection, [placed.identifier], segments=True)
    check_all_rows(
        connection, [placed.subscriptions.identifier, placed.parked_ids.identifier, placed.parked.identifier]
    )
    with exclusively(connection, placed, patience_seconds):
        return _Retention(connection, placed, keep_seconds, patience_seconds).run(dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _Retention:
    connection: psycopg.Connection[Any]
    outbox: OutboxTable
    keep_seconds: float
    patience_seconds: float

    def run(self, *, dry_run: bool) -> Dropping:
        segments = Segments(self.outbox)
        dropped = [] if dry_run else self._finish(segments)
        closed = segments.close_passed(self.connection)
        for segment in closed:
            if because := self._still_open_or_kept(segments, segment):
                return Dropping(dropped=dropped, kept=segment.name, because=because)
            if because := self._held_by(segments, segment):
                held = [each for each in closed if each.closed_at is not None and each.name not in dropped]
                return Dropping(
                    dropped=dropped,
                    kept=segment.name,
                    because=because,
                    held_segments=len(held),
                    held_bytes=sum(segments.size_bytes(self.connection, each) for each in held),
                )
            if not dry_run and (because := self._drop(segments, segment)):
                return Dropping(dropped=dropped, kept=segment.name, because=because)
            dropped.append(segment.name)
        return Dropping(dropped=dropped)

    def _still_open_or_kept(self, segments: Segments, segment: Segment) -> str:
        """Return why a segment is open, or not old enough; an empty text if it is closed and old enough."""
        if segment.upper is None or segment.passed_at is None:
            return "it is open: the sequence is not past its end"
        if segment.closed_at is None:
            writers = segments.waited_for(self.connection, segment)
            return f"it is open: {', '.join(writers) or 'a transaction that has just ended'} could still write into it"
        with translated():
            kept = self._value(queries.KEPT, name=segment.name, keep=self.keep_seconds)
        if not kept:
            return f"it was closed at {segment.closed_at:%Y-%m-%d %H:%M:%S%z} and is kept for {self.keep_seconds:g} s"
        return ""

    def _held_by(self, segments: Segments, segment: Segment) -> str:
        """Return why a closed segment is still needed; an empty text if it is not needed."""
        assert segment.upper is not None  # noqa: S101 - it is closed
        with translated():
            subscriptions = self._rows(queries.SUBSCRIPTIONS)
        if not subscriptions:
            return "there is no subscription: no reader of it is known"
        for subscription, shard, low_watermark, hold in subscriptions:
            if hold is not None and hold < segment.upper:
                return f"the subscription {subscription!r}, shard {shard}, holds the record {hold}"
            if segments.has_unseen(self.connection, segment, low_watermark):
                return f"the subscription {subscription!r}, shard {shard}, has not passed it"
        parked = self._first_parked(segment)
        if parked is not None:
            return f"the record {parked} is parked and may be put back"
        return ArchivedSegments(self.outbox).missing(self.connection, segment)

    def _drop(self, segments: Segments, segment: Segment) -> str:
        """Detach and drop a segment. Return why it was kept after all; an empty text if it was dropped."""
        if not segment.is_passed(segments.next_id(self.connection)):
            return _RETURNED
        self._value(queries.LEAVE, name=segment.name, leaving=True)
        self._detach(segment.table)
        return self._drop_detached(segments, segment)

    def _finish(self, segments: Segments) -> list[str]:
        """Finish the drops that an earlier run began, and return the names of the segments dropped."""
        dropped = []
        with translated():
            leaving = [row[0] for row in self._rows(queries.LEAVING)]
        for name in leaving:
            attached = segments.read(self.connection)
            segment = next((each for each in attached if each.name == name), None)
            if segment is not None and not segment.detaching:
                self._value(queries.LEAVE, name=name, leaving=False)  # not detached yet: this run checks it again
                continue
            if segment is not None:
                self._detach(segment.table)
            else:  # it was detached, and was the lowest segment then: it ends where the first attached segment begins
                segment = Segment(
                    table=OutboxTable((self.outbox.parts[0], name)),
                    lower=None,
                    upper=attached[0].lower,
                    detaching=True,
                    passed_at=None,
                    closed_at=None,
                )
            if not segment.table.exists(self.connection):
                self._value(queries.FORGET, name=name)
            elif not self._drop_detached(segments, replace(segment, detaching=True)):
                dropped.append(name)
        return dropped

    def _detach(self, segment: OutboxTable) -> None:
        """Detach a segment, outside a transaction. If a session has already begun to detach it, only finish that."""
        names = {"outbox": self.outbox.identifier, "segment": segment.identifier}

        def change() -> None:
            if not self._is_detaching(segment):
                self._begin_to_detach(segment, sql.SQL(queries.DETACH).format(**names))
            self.connection.execute(queries.PATIENTLY)
            self.connection.execute(sql.SQL(queries.FINALIZE).format(**names))

        with_short_locks(
            self.connection,
            self.outbox,
            change,
            patience_seconds=self.patience_seconds,
            in_transaction=False,
            waits_for_snapshots=True,
        )

    def _begin_to_detach(self, segment: OutboxTable, statement: sql.Composed) -> None:
        """Run only the first phase of DETACH CONCURRENTLY, after which new snapshots do not see the segment.

        The second phase would wait only for sessions with a lock on the outbox. A session with an older snapshot that
        reads the outbox later would then miss the segment's records, without an error. FINALIZE waits for both kinds of
        sessions. So a second session takes a lock that prevents the statement from finishing.
        """
        with self._beside() as in_the_way, in_the_way.transaction():
            in_the_way.execute(queries.BRIEFLY)
            in_the_way.execute(sql.SQL(queries.USE).format(outbox=self.outbox.identifier))
            self.connection.execute(queries.BRIEFLY)
            try:
                self.connection.execute(statement)
            except pg.LockNotAvailable:
                if not self._is_detaching(segment):
                    raise

    @contextmanager
    def _beside(self) -> Iterator[psycopg.Connection[Any]]:
        """Open another session with the current role of the connection, even if the role was set with SET ROLE."""
        info = self.connection.info
        (role,) = self.connection.execute("SELECT current_user::text")
        with open_session(info.dsn, password=info.password or None) as session:
            session.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role[0])))
            yield session

    def _is_detaching(self, segment: OutboxTable) -> bool:
        return any(each.detaching and each.table == segment for each in Segments(self.outbox).read(self.connection))

    def _drop_detached(self, segments: Segments, segment: Segment) -> str:
        """Drop a detached segment, or attach it again. Return why it was attached; an empty text if it was dropped."""
        names = {"segment": segment.table.identifier, "outbox": self.outbox.identifier}

        def change() -> str:
            self.connection.execute(sql.SQL(queries.LOCK).format(table=segment.table.identifier))
            next_id = segments.next_id(self.connection)
            because = self._held_by(segments, segment)
            if not because and not segments.is_as_noted(self.connection, segment):
                because = _AGAIN
            elif not because and segment.is_passed(next_id):
                self.connection.execute(sql.SQL(queries.DROP).format(**names))
                return ""
            if not because:  # delete old records whose ids will be given out again; no subscription needs them
                self.connection.execute(sql.SQL(queries.DELETE_FROM).format(**names), (next_id,))
                because = _RETURNED
            bounds = {
                "lower": sql.SQL("MINVALUE") if segment.lower is None else sql.Literal(segment.lower),
                "upper": sql.SQL("MAXVALUE") if segment.upper is None else sql.Literal(segment.upper),
            }
            self.connection.execute(sql.SQL(queries.ATTACH).format(**names, **bounds))
            return because

        because = with_short_locks(self.connection, segment.table, change, patience_seconds=self.patience_seconds)
        self._value(queries.FORGET, name=segment.name)
        return because

    def _first_parked(self, segment: Segment) -> int | None:
        if not self.outbox.parked.exists(self.connection):
            return None
        lower, upper = segment.lower, segment.upper
        values = {"lower": _ALL_IDS[0] if lower is None else lower, "upper": _ALL_IDS[1] if upper is None else upper}
        found: int | None = self._value(queries.PARKED_WITHIN, **values)
        return found

    def _value(self, query: str, **values: object) -> Any:
        with translated():
            cursor = self.connection.execute(self._statement(query), values)
            row = cursor.fetchone() if cursor.description else None
        return row[0] if row is not None else None

    def _rows(self, query: str) -> list[Any]:
        return self.connection.execute(self._statement(query), {}).fetchall()

    def _statement(self, query: str) -> sql.Composed:
        return sql.SQL(query).format(
            outbox=in_statement(self.outbox.identifier),
            segments=in_statement(self.outbox.segments.identifier),
            subscriptions=in_statement(self.outbox.subscriptions.identifier),
            parked_ids=in_statement(self.outbox.parked_ids.identifier),
            parked=in_statement(self.outbox.parked.identifier),
        )
