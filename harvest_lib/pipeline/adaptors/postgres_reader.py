"""Tables of Postgres: first all that they hold, then what changes, as it commits.

    slot made, snapshot exported ─► NOOP where it begins ─► tables under that snapshot ─► changes after the slot's begin
                                     Sync NOOP {"lsn"}       Copy … Complete               Sync, and NOOPs {"lsn"}

Promises
- Nothing is missed: the slot is made first, and keeps all changes from then on; what the tables hold is read under the
  snapshot of that very moment.
- Stopped anywhere, it goes on: after the last transaction that the log has whole; and a table whose copy was not
  complete is copied again, under a new snapshot, with all changes since the slot was made still to follow. Versions of
  a row in between may come after a newer one then, until the changes have caught up.
- The slot is told of no place but those that `kept` names. What comes after is there again, whatever happens here.
- A transaction's messages come together and in order, transactions in the order in which they committed; one that did
  not commit never comes. A large one comes in several batches.
- While the server is away it is waited for, once the changes have begun to be followed.
"""

import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.database import connect
from harvest_lib.deadline import Deadline, boot_seconds
from harvest_lib.errors import AdaptorError, DatabaseUnavailable, PositionLost
from harvest_lib.pipeline.adaptors import postgres_catalog as catalog
from harvest_lib.pipeline.adaptors.pgoutput import decode
from harvest_lib.pipeline.adaptors.postgres_catalog import Table
from harvest_lib.pipeline.adaptors.postgres_changes import Changes
from harvest_lib.pipeline.adaptors.postgres_copy import copied, settled
from harvest_lib.pipeline.adaptors.postgres_options import PostgresReading
from harvest_lib.pipeline.adaptors.postgres_values import SETTINGS
from harvest_lib.pipeline.adaptors.replication import Alive, Change, Replication, with_settings
from harvest_lib.pipeline.message import Message, Mode, Op
from harvest_lib.source.server import lsn_number

_log = logging.getLogger(__name__)

_SLOT = """
SELECT plugin, database, confirmed_flush_lsn::text, wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = %s
"""
_SYSTEM = "SELECT system_identifier::text FROM pg_control_system()"

_WAIT_SECONDS = 0.2
_BUSY_SECONDS = 30.0
"""A server may take a while to notice that the one before us is gone."""
_LONGEST_PAUSE_SECONDS = 5.0


class PostgresReader:
    """`Reader` of published tables."""

    def __init__(self, options: PostgresReading, *, position_seconds: float = 10.0) -> None:
        """While nothing changes in the tables, where the log is is said every `position_seconds`."""
        self._options = options
        self._publication = options.publication or options.slot
        self._namespace = f"postgres/{options.slot}"
        self._conninfo = options.data_source.conninfo()
        self._position_seconds = position_seconds
        self._connection: psycopg.Connection[Any] | None = None
        self._stream: Replication | None = None
        self._system = ""
        self._said_at = 0.0
        self._following = False
        self._kept = self._confirmed = ""

    def read(self, last: Mapping[str, Message]) -> Iterator[Sequence[Message]]:
        """See `Reader`."""
        connection = self._connect()
        catalog.require_decoding(connection)
        catalog.publish(connection, self._publication, self._options.tables)
        tables = catalog.tables(connection, self._publication, self._options.tables)
        self._system = self._one(connection, _SYSTEM)
        before = last.get(self._namespace)
        slot = self._slot(connection, before)
        replication = Replication(self._conninfo, SETTINGS)
        self._stream = replication
        snapshot = None
        if slot is None:
            lsn, snapshot = yield from self._make_slot(replication)
        else:
            lsn = slot
        if before is None:
            yield [self._position(lsn)]
        todo = [each for each in tables if _is_to_be_copied(last.get(each.namespace))]
        if todo and self._options.initial_copy:
            if snapshot is None:
                yield from self._until_settled(connection)
            yield from copied(connection, todo, snapshot=snapshot, batch_rows=self._options.batch_rows)
        yield from self._follow(tables, lsn)

    def kept(self, last: Mapping[str, Message]) -> None:
        """See `Reader`."""
        place = last.get(self._namespace)
        self._kept = place.data["lsn"] if place is not None else self._kept
        self._confirm()

    def close(self) -> None:
        """See `Reader`."""
        self._leave()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- the slot

    def _slot(self, connection: psycopg.Connection[Any], before: Message | None) -> str | None:
        """Return where the slot is to be followed from; None if it has to be made. Raises PositionLost."""
        name = self._options.slot
        with catalog.refusals("to look at slots", "check the user's grants"):
            row = connection.execute(_SLOT, (name,)).fetchone()
        anew = (
            f"what changed since is gone: drop the slot if it is there (SELECT pg_drop_replication_slot('{name}')), "
            "move the pipeline's folder away, and start again; all tables are copied anew then"
        )
        if row is None:
            if before is None:
                return None
            raise PositionLost(
                f"the slot {name!r} is not there any more",
                evidence=f"the pipeline's log has come to {before.data['lsn']} of it",
                next_step=anew,
            )
        plugin, database, confirmed, is_lost = row
        if plugin != "pgoutput" or database != connection.info.dbname:
            raise AdaptorError(
                f"the slot {name!r} is another's",
                evidence=f"its plugin is {plugin}, its database {database}",
                next_step="give `slot` a name of its own",
            )
        if is_lost:
            raise PositionLost(f"the server has given up the slot {name!r}", evidence="wal_status lost", next_step=anew)
        if before is None:
            return str(confirmed)
        if before.data["system"] != self._system:
            raise PositionLost(
                "this is not the server that the pipeline's log came from",
                evidence=f"its system identifier is {self._system}, the log's {before.data['system']}",
                next_step=f"correct `data_source`, or: {anew}",
            )
        if lsn_number(confirmed) > lsn_number(before.data["lsn"]):
            raise PositionLost(
                f"somebody else has moved the slot {name!r} on",
                evidence=f"it is at {confirmed}, the pipeline's log has come to {before.data['lsn']}",
                next_step=f"find who reads it, and give each a `slot` of its own; {anew}",
            )
        return str(before.data["lsn"])

    def _make_slot(self, replication: Replication) -> Generator[Sequence[Message], None, tuple[str, str]]:
        """Make the slot; return where it begins and the name of its snapshot. Waits for transactions that are open."""
        replication.ask(f'CREATE_REPLICATION_SLOT "{self._options.slot}" LOGICAL pgoutput EXPORT_SNAPSHOT')
        remedy = "see the server's words; `max_replication_slots` and `max_wal_senders` say how many there can be"
        while True:
            with catalog.refusals(f"to make the slot {self._options.slot!r}", remedy):
                rows = replication.answer(_WAIT_SECONDS)
            if rows is not None:
                return rows[0][1], rows[0][2]
            yield []

    def _until_settled(self, connection: psycopg.Connection[Any]) -> Iterator[Sequence[Message]]:
        have_ended = settled(connection)
        while not have_ended():
            time.sleep(_WAIT_SECONDS)
            yield []

    def _confirm(self) -> None:
        """Tell the server what was kept, if it listens."""
        if self._stream is None or not self._following or self._kept in {"", self._confirmed}:
            return
        with suppress(psycopg.Error):  # that the connection is lost shows when it is next read from
            self._stream.confirm(self._kept)
            self._confirmed = self._kept

    # -- changes

    def _follow(self, tables: Sequence[Table], lsn: str) -> Iterator[Sequence[Message]]:
        pause, waits = _WAIT_SECONDS, False
        while True:
            try:
                for batch in self._attached(tables, lsn):
                    lsn = next((each.data["lsn"] for each in reversed(batch) if each.op is Op.NOOP), lsn)
                    pause, waits = _WAIT_SECONDS, False
                    yield batch
            except (psycopg.OperationalError, DatabaseUnavailable) as error:
                if not waits:
                    _log.warning("reader_waits", extra={"slot": self._options.slot, "reason": type(error).__name__})
                waits = True
            self._leave()
            deadline, pause = Deadline(pause), min(pause * 2, _LONGEST_PAUSE_SECONDS)
            while not deadline.passed:
                time.sleep(min(_WAIT_SECONDS, deadline.remaining_seconds))
                yield []

    def _attached(self, tables: Sequence[Table], lsn: str) -> Iterator[Sequence[Message]]:
        """Follow changes on one connection."""
        stream = self._stream = self._stream or Replication(self._conninfo, SETTINGS)
        busy = Deadline(_BUSY_SECONDS)
        stream.follow(self._options.slot, self._publication, lsn)
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
                stream.follow(self._options.slot, self._publication, lsn)
                answer = None
            if answer is not None:
                break
            yield []
        self._following, self._confirmed = True, ""
        self._confirm()
        yield from self._changes(stream, Changes(tables, base_type=self._base_type, fetch=self._fetch), lsn)

    def _changes(self, stream: Replication, changes: Changes, lsn: str) -> Iterator[Sequence[Message]]:
        batch: list[Message] = []
        said = lsn_number(lsn)
        owes = False  # messages were sent down since it was last said where to go on
        while True:
            # A transaction that has begun to come comes at once: its end is waited for.
            received = stream.receive(0.0 if batch and not changes.is_open else _WAIT_SECONDS)
            match received:
                case Change():
                    batch += changes.take(decode(received.payload))
                    if len(batch) < self._options.batch_rows:
                        continue
                case Alive():
                    if not changes.is_open:
                        changes.end = max(changes.end, received.lsn)
                    if batch:
                        continue
            owes = owes or bool(batch)
            if changes.end > said and (owes or boot_seconds() >= self._said_at + self._position_seconds):
                said, owes = changes.end, False
                batch.append(self._position(lsn_text(said)))
            yield batch
            batch = []

    def _position(self, lsn: str) -> Message:
        self._said_at = boot_seconds()
        data = {"lsn": lsn, "system": self._system}
        return Message(Op.NOOP, time.time_ns() // 1_000_000, self._namespace, data)

    def _base_type(self, oid: int) -> int:
        return catalog.base_type(self._connect(), oid)

    def _fetch(self, table: Table, key: Mapping[str, str], columns: Sequence[str]) -> Mapping[str, str | None] | None:
        statement = sql.SQL("SELECT {} FROM {} WHERE {}").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            table.identifier,
            sql.SQL(" AND ").join(
                sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in key.items()
            ),
        )
        with catalog.refusals(f"to read what a change of {table.namespace} left out", "GRANT SELECT ON the table"):
            found = self._connect().execute(statement).pgresult
        if found is None or found.ntuples == 0:
            return None
        # As it stands on the wire: text as changes have it.
        values = [found.get_value(0, place) for place in range(len(columns))]
        return {
            name: value.decode() if value is not None else None for name, value in zip(columns, values, strict=True)
        }

    # -- connections

    def _connect(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(with_settings(self._conninfo, SETTINGS))
        return self._connection

    def _leave(self) -> None:
        stream, self._stream, self._following = self._stream, None, False
        if stream is not None:
            stream.close()

    @staticmethod
    def _one(connection: psycopg.Connection[Any], statement: Any) -> str:
        with catalog.refusals("to look at the server", "check the user's grants"):
            row = connection.execute(statement).fetchone()
        return str(row[0]) if row is not None else ""


def lsn_text(lsn: int) -> str:
    """Return a number of bytes as an LSN."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _is_to_be_copied(last: Message | None) -> bool:
    return last is None or last.mode is Mode.COPY
