"""Client of Postgres' replication protocol over psycopg's libpq: creates a slot, receives changes, confirms positions.

psycopg has no class for the protocol. It needs only libpq's functions for COPY in both directions. No method waits
longer than its timeout: the caller calls `answer` or `receive` again for a late result.

Promises
- Only positions that were passed to `confirm` are reported to the server as stored.
- `receive` answers the server's keepalive requests. `wal_sender_timeout` and `tcp_user_timeout` are switched off: with
  a timeout, the server would disconnect a reader that writes a transaction for longer than the timeout, and then send
  the transaction from its start, again and again. TCP keepalives let the server detect a reader whose host is gone.
"""

import selectors
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from harvest_lib.clock import Deadline
from harvest_lib.postgres.database import WAITS_FOR_CLIENT, connect
from harvest_lib.source.server_identity import lsn_number

_DATA, _ALIVE = b"w", b"k"
_DATA_HEADER = struct.Struct(">cQQq")
_ALIVE_MESSAGE = struct.Struct(">cQqB")
_STATUS = struct.Struct(">cQQQqB")


_PATIENCE = {
    "wal_sender_timeout": "0",
    **WAITS_FOR_CLIENT,
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}


class Change(NamedTuple):
    """A message of the output plugin, not decoded."""

    payload: bytes


class Alive(NamedTuple):
    """A keepalive: the server has read its log up to `lsn`, and has sent all changes before `lsn`."""

    lsn: int


class Replication:
    """A replication connection to a database. A single thread uses it."""

    def __init__(self, conninfo: str, settings: Mapping[str, str]) -> None:
        """Connect, with `settings` as parameters of the session. Raises DatabaseError."""
        self._connection: psycopg.Connection[Any] = connect(
            make_conninfo(conninfo, replication="database"), {**settings, **_PATIENCE}
        )
        self._pgconn = self._connection.pgconn
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pgconn.socket, selectors.EVENT_READ)
        self._kept = 0  # the server ignores position 0

    def ask(self, command: str) -> None:
        """Send a command; `answer` returns its result."""
        self._pgconn.send_query(command.encode())
        self._flush()

    def answer(self, timeout_seconds: float) -> list[tuple[str, ...]] | None:
        """Return the rows of the answer, None if no answer comes within the timeout. Raises psycopg.Error."""
        deadline = Deadline(timeout_seconds)
        while self._pgconn.is_busy():
            if not self._selector.select(deadline.remaining_seconds):
                return None
            self._pgconn.consume_input()
        result = self._pgconn.get_result()
        if result is None:
            raise psycopg.OperationalError("the connection was lost")
        if result.status == pq.ExecStatus.COPY_BOTH:
            return []
        while self._pgconn.get_result() is not None:
            pass
        if result.status not in {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}:
            raise psycopg.errors.error_from_result(result)
        return [
            tuple((result.get_value(row, column) or b"").decode() for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def ask_for(self, command: str) -> list[tuple[str, ...]]:
        """Send a command, wait up to 10 s for the answer, and return its rows. Raises psycopg.Error."""
        self.ask(command)
        rows = self.answer(_SEND_SECONDS)
        if rows is None:
            raise psycopg.OperationalError("the server does not answer")
        return rows

    def follow(self, slot: str, publication: str, lsn: str) -> None:
        """Request all changes after `lsn`. `answer` returns [] if the server accepts; `receive` returns the changes."""
        names = sql.Literal(sql.Identifier(publication).as_string(None)).as_string(None)
        self.ask(f"START_REPLICATION SLOT \"{slot}\" LOGICAL {lsn} (proto_version '1', publication_names {names})")

    def receive(self, timeout_seconds: float) -> Change | Alive | None:
        """Return the next message, None if no message comes within the timeout. Raises psycopg.Error."""
        deadline = Deadline(timeout_seconds)
        while True:
            size, data = self._pgconn.get_copy_data(1)
            if size > 0:
                message = bytes(data)
                if message[:1] == _DATA:
                    return Change(message[_DATA_HEADER.size :])
                if message[:1] == _ALIVE:
                    _, lsn, _, asks = _ALIVE_MESSAGE.unpack(message)
                    if asks:
                        self._report()
                    return Alive(lsn)
                continue
            if size == -1:
                self._ended()
            if not self._selector.select(deadline.remaining_seconds):
                return None
            self._pgconn.consume_input()

    def confirm(self, lsn: str) -> None:
        """Report to the server that it need not retain changes before `lsn` any more. Raises psycopg.Error."""
        self._kept = max(self._kept, lsn_number(lsn))
        self._report()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._selector.close()
        self._connection.close()

    def _report(self) -> None:
        # The server uses the time only for its statistics, so zero is good enough.
        self._pgconn.put_copy_data(_STATUS.pack(b"r", self._kept, self._kept, self._kept, 0, 0))
        self._flush()

    def _flush(self) -> None:
        while self._pgconn.flush():
            selector = selectors.DefaultSelector()
            with selector:
                selector.register(self._pgconn.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
                if not selector.select(_SEND_SECONDS):
                    raise psycopg.OperationalError("the server does not read from the connection")
            self._pgconn.consume_input()

    def _ended(self) -> None:
        result = self._pgconn.get_result()
        if result is not None and result.error_message:
            raise psycopg.errors.error_from_result(result)
        raise psycopg.OperationalError("the server ended the replication")


_SEND_SECONDS = 10.0
