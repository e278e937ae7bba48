"""Reader of Postgres tables: first all their rows, then their changes in the order of the commits.

    slot created, snapshot exported ─► NOOP with its start ─► rows under that snapshot ─► changes after the slot's start
                                        Sync NOOP {"lsn"}      Copy … Complete             Sync, and NOOPs {"lsn"}

    NOOP  postgres/SLOT         {"lsn": "0/16B3748", "system": "7411…", "timeline": 1,
                                 "commit": [23803720, 741, 1795896690259]}
                                     the LSN to continue at; end LSN, id and commit time (ms) of the last transaction
    NOOP  postgres/SLOT/tables  {"public.flights": [16402, 741, 16411], "public.old": null}
                                     the numbers of each followed table (`slot.Known`); null: not followed any more
Promises
- Nothing is missed. The slot is created first, and retains all changes from its start; rows are read under the slot's
  exported snapshot. In a snapshot, a table that was rewritten after the snapshot looks empty: if that happened before
  the tables were locked, they are read under a new snapshot.
- After a stop at any point, the reader continues after the last complete transaction in the commit log. A table with
  an incomplete copy is copied again under a new snapshot, and all changes since the slot's creation still follow. Until
  the changes have caught up, an older version of a row may come after a newer version.
- A gap is an error: a table was not followed for a while, or was removed from the publication; another table has taken
  its name; the publication's options were altered, even if they were restored; the server lacks changes that were read.
- Only positions that were passed to `kept` are confirmed to the slot. So later changes can be read again after a crash.
- A transaction's messages are contiguous and in order, and transactions are in the order of their commits. An aborted
  transaction is never read. A large transaction is yielded in several batches.
- As soon as the reader has begun to follow changes, it waits while the server is unavailable.
"""

import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import errors as pg

from harvest_lib.clock import Deadline, boot_seconds, unix_ms
from harvest_lib.errors import AdaptorError, DatabaseUnavailable, HarvestError
from harvest_lib.pipeline.adaptors import Reader
from harvest_lib.pipeline.adaptors.postgres import catalog
from harvest_lib.pipeline.adaptors.postgres.catalog import Table
from harvest_lib.pipeline.adaptors.postgres.changes import Changes
from harvest_lib.pipeline.adaptors.postgres.copy import Copy, impatient, open_transactions, waiting
from harvest_lib.pipeline.adaptors.postgres.fetch import row_of
from harvest_lib.pipeline.adaptors.postgres.history import Resent
from harvest_lib.pipeline.adaptors.postgres.money import columns_of_money, require_two_digits
from harvest_lib.pipeline.adaptors.postgres.options import PostgresReading
from harvest_lib.pipeline.adaptors.postgres.pgoutput import decode
from harvest_lib.pipeline.adaptors.postgres.replication import Alive, Change, Replication
from harvest_lib.pipeline.adaptors.postgres.slot import (
    Known,
    gone_for_good,
    known_of,
    maker_of,
    place_of,
    require_followed,
    require_log,
    require_members,
    require_sent,
    require_timeline,
    require_whole,
    system_of,
)
from harvest_lib.pipeline.adaptors.postgres.slot_watch import SlotState, SlotWatch
from harvest_lib.pipeline.adaptors.postgres.values import READING
from harvest_lib.pipeline.bounds import Room, size_of
from harvest_lib.pipeline.message import Mode, Op, PipelineMessage
from harvest_lib.postgres.database import connect
from harvest_lib.source.server_identity import lsn_number

_log = logging.getLogger(__name__)

_ALL_ROWS = {"row_security": "off"}
"""With this parameter, rows that a policy would hide cause an error instead of being left out."""

_WAIT_SECONDS = 0.2
_BUSY_SECONDS = 30.0
"""Longest wait for a busy slot: a server may notice late that the previous reader is gone."""
_LONGEST_PAUSE_SECONDS = 5.0


class PostgresReader(Reader):
    """`Reader` of published tables."""

    needs_data = False

    def __init__(self, options: PostgresReading, *, position_seconds: float = 10.0) -> None:
        """`position_seconds` is the interval of the checks of the publication. While no table changes, it is also the
        interval at which a NOOP with the present LSN is yielded."""
        self._options = options
        self._publication = options.publication or options.slot
        self._namespace = f"postgres/{options.slot}"
        self._followed = f"postgres/{options.slot}/tables"
        self._conninfo = options.data_source.conninfo()
        self._position_seconds = position_seconds
        self._connection: psycopg.Connection[Any] | None = None
        self._stream: Replication | None = None
        self._system, self._timeline = "", 0
        self._said_at = 0.0
        self._following = False
        self._kept = self._confirmed = ""
        self._watch = SlotWatch(self._conninfo, options.slot)

    def read(self, last: Mapping[str, PipelineMessage]) -> Iterator[Sequence[PipelineMessage]]:
        connection = self._connect()
        catalog.require_decoding(connection)
        before, followed = last.get(self._namespace), last.get(self._followed)
        known = dict(followed.data) if followed is not None else {}
        options = self._options
        require_whole(before.data if before is not None else None, known, slot=options.slot)
        catalog.publish(connection, self._publication, options.tables)
        tables = catalog.tables(connection, self._publication, options.tables)
        # A table that will be copied, and of which no message was sent, cannot have a gap.
        kept = [each for each in tables if each.namespace in last or not options.initial_copy]
        require_followed(kept, known, slot=options.slot)
        require_sent(connection, tables, {each.namespace for each in kept} & set(known), slot=options.slot)
        for table in tables:
            with catalog.refusals("to read its settings", "see the server's words"):
                if columns_of_money(connection, table.oid).keys() & table.columns.keys():
                    require_two_digits(connection, table.namespace)
        yield from self._until_made(connection)
        confirmed = place_of(connection, options.slot, before.data if before is not None else None)
        self._system = system_of(connection)
        replication = Replication(self._conninfo, READING)
        self._stream = replication
        self._timeline = require_timeline(replication, before.data if before is not None else {}, options.slot)
        snapshot = None
        if confirmed is None:
            confirmed, snapshot = yield from self._make_slot(replication)
        place = dict(before.data) if before is not None else self._place(confirmed, None)
        following = known_of(tables, known)
        if before is None or known != following:
            yield [self._position(place["lsn"], place.get("commit")), self._tables_message(following)]
        todo = [each for each in tables if _is_to_be_copied(last.get(each.namespace))]
        if todo and options.initial_copy:
            copy = Copy(
                options,
                self._open,
                again=self._again,
                note=lambda now: self._tables_message({**following, **known_of(now, {})}),
            )
            done = yield from copy.run(todo, snapshot, sent=last.keys())
            tables = [done.get(each.namespace, each) for each in tables]
        yield from self._follow(tables, place, confirmed)

    def kept(self, last: Mapping[str, PipelineMessage]) -> None:
        place = last.get(self._namespace)
        self._kept = place.data["lsn"] if place is not None else self._kept
        self._confirm()

    # -- the slot

    def slot_state(self) -> SlotState | None:
        """See `Reader`."""
        return self._watch.seen()

    def _until_made(self, connection: psycopg.Connection[Any]) -> Iterator[Sequence[PipelineMessage]]:
        """Wait while another connection creates the slot: a pipeline that was stopped may have left this connection
        behind. Yields empty batches."""
        patience = None
        while (maker := maker_of(connection, self._options.slot)) is not None:
            patience = patience or waiting(
                self._options.slot, f"pid {maker}, which makes the slot; {open_transactions(connection)}"
            )
            next(patience)
            time.sleep(_WAIT_SECONDS)
            yield []

    def _make_slot(self, replication: Replication) -> Generator[Sequence[PipelineMessage], None, tuple[str, str]]:
        """Create the slot. Return two values: its first LSN, and the name of its snapshot. Postgres first waits for the
        end of open transactions; during that wait, this method yields empty batches."""
        replication.ask(f'CREATE_REPLICATION_SLOT "{self._options.slot}" LOGICAL pgoutput EXPORT_SNAPSHOT')
        remedy = "see the server's words; `max_replication_slots` and `max_wal_senders` limit their number"
        patience = waiting(self._options.slot, lambda: open_transactions(self._connect()))
        while True:
            with catalog.refusals(f"to make the slot {self._options.slot!r}", remedy):
                rows = replication.answer(_WAIT_SECONDS)
            if rows is not None:
                return rows[0][1], rows[0][2]
            next(patience)
            yield []

    def _confirm(self) -> None:
        """Confirm to the server the last position that was passed to `kept`. This method does nothing before the stream
        of changes has begun and the server's log is checked (`Resent`)."""
        if self._stream is None or not self._following or self._kept in {"", self._confirmed}:
            return
        with suppress(psycopg.Error):  # the next read from a lost connection fails too, and reports it
            self._stream.confirm(self._kept)
            self._confirmed = self._kept

    # -- changes

    def _follow(
        self, tables: Sequence[Table], place: Mapping[str, Any], confirmed: str
    ) -> Iterator[Sequence[PipelineMessage]]:
        pause, waits = _WAIT_SECONDS, False
        while True:
            try:
                with catalog.refusals("to send changes", "see the server's words, and its log"):
                    for batch in self._attached(tables, place, confirmed):
                        place = next((each.data for each in reversed(batch) if each.op is Op.NOOP), place)
                        if self._following:
                            pause, waits = _WAIT_SECONDS, False
                        yield batch
            except DatabaseUnavailable as error:
                require_log(error, self._options.slot)
                if not waits:
                    _log.warning("reader_waits", extra={"slot": self._options.slot, "reason": error.evidence})
                waits = True
            self.close()  # closes all connections: a new connection may reach another server
            deadline, pause = Deadline(pause), min(pause * 2, _LONGEST_PAUSE_SECONDS)
            while not deadline.passed:
                time.sleep(min(_WAIT_SECONDS, deadline.remaining_seconds))
                yield []

    def _attached(
        self, tables: Sequence[Table], place: Mapping[str, Any], confirmed: str
    ) -> Iterator[Sequence[PipelineMessage]]:
        """Yield changes from one connection, starting at the slot's position. Skips changes that were read before."""
        slot = self._options.slot
        if self._stream is None:
            connection = self._connect()
            catalog.require_decoding(connection)
            confirmed = place_of(connection, slot, place) or confirmed
            self._stream = Replication(self._conninfo, READING)
            self._timeline = require_timeline(self._stream, place, slot)
        stream = self._stream
        busy = Deadline(_BUSY_SECONDS)
        stream.follow(slot, self._publication, confirmed)
        while True:
            try:
                with catalog.refusals("to follow changes", "see the server's words"):
                    answer = stream.answer(_WAIT_SECONDS)
            except DatabaseUnavailable as error:
                if not isinstance(error.__cause__, pg.ObjectInUse):
                    raise
                if busy.passed:
                    raise AdaptorError(
                        f"the slot {self._options.slot!r} is being read by another",
                        evidence=error.evidence,
                        next_step="stop the other pipeline, or give this one a `slot` of its own",
                    ) from error
                time.sleep(_WAIT_SECONDS)
                stream.follow(slot, self._publication, confirmed)
                answer = None
            if answer is not None:
                break
            yield []
        # The confirmed LSN is read again, now that this reader uses the slot: until then, an earlier connection may
        # have confirmed a later LSN.
        confirmed = place_of(self._connect(), slot, place) or confirmed
        changes = Changes(
            tables,
            base_type=lambda oid: catalog.base_type(self._connect(), oid),
            key_of=lambda oid: catalog.key_of(self._connect(), oid),
            fetch=lambda table, key, columns: row_of(self._connect(), table, key, columns),
        )
        resent = Resent(place, confirmed, next_step=gone_for_good(slot))
        changes.commit = place.get("commit")
        yield from self._changes(stream, changes, resent, tables, said=lsn_number(place["lsn"]))

    def _changes(
        self, stream: Replication, changes: Changes, resent: Resent, tables: Sequence[Table], *, said: int
    ) -> Iterator[Sequence[PipelineMessage]]:
        batch: list[PipelineMessage] = []
        room = Room(self._options.batch_rows)
        look_at = boot_seconds() + self._position_seconds
        owes = False  # True: messages were yielded after the last position
        while True:
            # Inside a transaction, wait for the next change even if the batch is not empty: it follows soon.
            received = stream.receive(0.0 if batch and not changes.is_open else _WAIT_SECONDS)
            match received:
                case Change():
                    taken = changes.take(change) if resent.is_new(change := decode(received.payload)) else []
                    batch += taken
                    for each in taken:  # not the payload's size: it lacks large values that were queried
                        room.take(size_of(each.data))
                    if not room.is_full:
                        continue
                case Alive():
                    resent.alive(received.lsn)
                    if not changes.is_open:
                        changes.end = max(changes.end, received.lsn)
                    if batch:
                        continue
            if resent.is_checked and not self._following:
                self._following, self._confirmed = True, ""
                self._confirm()
            if boot_seconds() >= look_at:
                require_members(self._connect(), self._publication, tables, slot=self._options.slot)
                look_at = boot_seconds() + self._position_seconds
            owes = owes or bool(batch)
            if changes.end > said and (owes or boot_seconds() >= self._said_at + self._position_seconds):
                said, owes = changes.end, False
                batch.append(self._position(lsn_text(said), changes.commit))
            yield batch
            batch = []
            room.empty()

    def _again(self, tables: Sequence[Table]) -> Sequence[Table] | None:
        try:
            with impatient(self._connect()) as connection:
                return catalog.tables(connection, self._publication, [each.namespace for each in tables])
        except HarvestError as error:
            if isinstance(error.__cause__, pg.LockNotAvailable):
                return None
            raise

    def _tables_message(self, known: Known) -> PipelineMessage:
        return PipelineMessage(Op.NOOP, unix_ms(), self._followed, known)

    def _position(self, lsn: str, commit: Sequence[int] | None) -> PipelineMessage:
        self._said_at = boot_seconds()
        return PipelineMessage(Op.NOOP, unix_ms(), self._namespace, self._place(lsn, commit))

    def _place(self, lsn: str, commit: Sequence[int] | None) -> Mapping[str, Any]:
        last = list(commit) if commit is not None else None
        return {"lsn": lsn, "system": self._system, "timeline": self._timeline, "commit": last}

    # -- connections

    def _connect(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = self._open()
        return self._connection

    def _open(self) -> psycopg.Connection[Any]:
        return connect(self._conninfo, {**READING, **_ALL_ROWS})

    def close(self) -> None:
        """See `Reader`. The reader can read again afterwards, over new connections."""
        stream, self._stream, self._following = self._stream, None, False
        if stream is not None:
            stream.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def lsn_text(lsn: int) -> str:
    """Return the text of an LSN, such as `0/16B3748`, for its number."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _is_to_be_copied(last: PipelineMessage | None) -> bool:
    return last is None or last.mode is Mode.COPY
