"""`Store` on the machine of a shard's owner: a SQLite database, with all changed pages recorded in Kafka.

    restore ─► begin ─► (the user changes tables) ─► commit in SQLite ─► its pages in one Kafka transaction ─► begin …
    fences, plays back                                                   False: another owner has restored it since

Promises
- Only the recovery log is authoritative. The database file is a cache: `restore` rebuilds the file from the log. The
  file has no name while it is used, so it cannot be mistaken for the state, and a killed process leaves no file behind.
- After a new owner has restored a checkpoint, no older owner commits anything, however late it resumes.
- If it is unknown whether Kafka committed a transaction, no further transaction begins before the store is restored.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Producer

from harvest_lib.consume.causes import passes
from harvest_lib.consume.checkpoint import Checkpoint, ShardId
from harvest_lib.consume.recovery_log import LogPlace
from harvest_lib.consume.recovery_log_writer import RecoveryLogWriter
from harvest_lib.consume.sqlite_wal import Appended, End, appended
from harvest_lib.consume.store import StateRefused, headers_as_json
from harvest_lib.kafka_client import KafkaProducerProvider
from harvest_lib.sequencing.batch import Message

_SETTINGS = (
    "locking_mode = EXCLUSIVE",
    "foreign_keys = ON",  # the user cannot set it: within a transaction SQLite ignores it
    "journal_mode = WAL",
    "wal_autocheckpoint = 0",  # pages not in Kafka yet stay in the write-ahead log, to be read there
    "synchronous = OFF",  # after a crash of the machine the file is gone anyway
)
_AUTO_VACUUM = "PRAGMA auto_vacuum = FULL"
"""For a new database only, so that freed pages are removed from the log too. In a restored database this pragma would
be a change."""
_CREATE = (
    """
CREATE TABLE consumers (
  consumer   TEXT NOT NULL,
  topic      TEXT NOT NULL,
  partition  INT NOT NULL,
  checkpoint TEXT NOT NULL,
  updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (consumer, topic, partition)
)""",
    """
CREATE TABLE consumers_parked (
  consumer  TEXT NOT NULL,
  topic     TEXT NOT NULL,
  partition INT NOT NULL,
  "offset"  INT NOT NULL,
  key       BLOB,
  value     BLOB,
  headers   TEXT NOT NULL,
  reason    TEXT NOT NULL,
  parked_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (consumer, topic, partition, "offset")
)""",
)
_INSERT = "INSERT INTO consumers (consumer, topic, partition, checkpoint) VALUES (?, ?, ?, ?)"
_UPDATE = "UPDATE consumers SET checkpoint = ?, updated_at = CURRENT_TIMESTAMP"
_PARK = (
    'INSERT OR REPLACE INTO consumers_parked (consumer, topic, partition, "offset", key, value, headers, reason) '
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_BEGIN = "BEGIN IMMEDIATE -- the store's own"
"""The comment makes this text different from any statement of the user's. It has to be different because statements are
cached by their texts, and a cached statement is not authorized again."""
_NO_FILE = -1
_NOT_THE_USERS = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})


class _Lent(sqlite3.Connection):
    """A connection that the user's functions cannot close."""

    is_lent = False

    def close(self) -> None:
        if self.is_lent:
            raise sqlite3.ProgrammingError("not authorized: the consumer closes its connection")
        super().close()


class SqliteStore:
    """`Store` in SQLite: the user's functions change tables through the connection that `begin` returns.

    That connection refuses with "not authorized": the end of the transaction (so `commit`, `rollback`, and
    `executescript`, which commits), other databases, and `close`.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object],
        shard: ShardId,
        *,
        log: str,
        provider: KafkaProducerProvider = Producer,
    ) -> None:
        """`directory` is created if it is missing. `log` is a topic of `create_recovery_log` that only this consumer
        uses."""
        self._directory = directory
        self._shard = shard
        place = LogPlace(log=log, shard=shard)
        self._recorder = RecoveryLogWriter(settings, place, provider=provider)
        self._connection: _Lent | None = None
        self._wal = _NO_FILE
        self._end: End | None = None

    def restore(self) -> Checkpoint:
        self.close()
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            with TemporaryDirectory(dir=self._directory, prefix="state-") as folder:
                path = Path(folder) / "state.db"
                # Closed before SQLite opens it: closing a file ends the locks that the process has on it.
                with path.open("wb") as file:
                    page_count = self._recorder.take_over(file)
                connection = self._connection = sqlite3.connect(
                    path, isolation_level=None, check_same_thread=False, factory=_Lent
                )
                if not page_count:
                    connection.execute(_AUTO_VACUUM)
                for setting in _SETTINGS:
                    connection.execute(f"PRAGMA {setting}").fetchall()
                if not page_count:
                    self._create(connection)
                connection.set_authorizer(self._authorize)
                ((kept,),) = connection.execute("SELECT checkpoint FROM consumers").fetchall()
                self._wal = os.open(f"{path}-wal", os.O_RDONLY)
        except BaseException:
            self.close()
            raise
        return Checkpoint.of_json(json.loads(kept))

    def begin(self) -> sqlite3.Connection:
        connection = self._owned()
        connection.execute(_BEGIN)
        connection.is_lent = True
        return connection

    @property
    def is_open(self) -> bool:
        return self._owned().in_transaction

    def touch(self) -> None:
        """Do nothing, because Kafka sees a transaction only when the transaction ends."""

    def will_pass(self, error: BaseException) -> bool:
        return passes(error)

    def flush(self) -> None:
        """Do nothing, because the user's statements change the database at once."""

    def commit(self, checkpoint: Checkpoint) -> bool:
        connection = self._returned()
        if not connection.in_transaction:  # for example after ON CONFLICT ROLLBACK; later statements commit singly
            self.close()
            raise RuntimeError("a statement of the user's ended the transaction, and the function went on after it")
        try:
            connection.execute(_UPDATE, (json.dumps(checkpoint.to_json()),))
            connection.commit()
        except sqlite3.IntegrityError as error:  # a deferred constraint
            connection.rollback()
            raise StateRefused(error) from error
        except sqlite3.Error:  # a full disk
            connection.rollback()
            raise
        is_kept = False
        try:
            found = appended(self._wal, self._end)
            # No page was appended if the same checkpoint was already saved within this second.
            is_kept = found is None or self._recorder.record(self._images(found), found.page_count)
        finally:
            if not is_kept:
                self.close()
        if is_kept and found is not None:
            self._end = found.end
            _empty_wal(connection)
        return is_kept

    def park(self, message: Message, reason: str) -> None:
        record = message.record
        headers = json.dumps(headers_as_json(record))
        values = (*self._shard, message.offset, record.key(), record.value(), headers, reason)
        self._owned().execute(_PARK, values)

    def rollback(self) -> None:
        self._returned().rollback()
        if appended(self._wal, self._end) is not None:  # see `commit`
            self.close()
            raise RuntimeError("a user's statement ended the transaction, and another transaction was kept after it")

    def close(self) -> None:
        self._recorder.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.is_lent = False
            connection.close()
        if self._wal != _NO_FILE:
            os.close(self._wal)
        self._wal, self._end = _NO_FILE, None

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute(_BEGIN)
        for statement in _CREATE:
            connection.execute(statement)
        connection.execute(_INSERT, (*self._shard, json.dumps(Checkpoint(shard=self._shard).to_json())))
        connection.commit()
        _empty_wal(connection)
        ((size,),) = connection.execute("PRAGMA page_size").fetchall()
        whole = connection.serialize()
        pages = ((at // size + 1, whole[at : at + size]) for at in range(0, len(whole), size))
        if not self._recorder.record(pages, len(whole) // size):
            raise self._recorder.superseded()

    def _images(self, found: Appended) -> Iterator[tuple[int, bytes]]:
        for page, position in found.positions.items():
            yield page, os.pread(self._wal, found.page_size, position)

    def _owned(self) -> _Lent:
        assert self._connection is not None  # noqa: S101 - `restore` opens it
        return self._connection

    def _returned(self) -> sqlite3.Connection:
        """Take the connection back from the user's function."""
        connection = self._owned()
        connection.is_lent = False
        return connection

    def _authorize(self, action: int, *_about: str | None) -> int:
        return sqlite3.SQLITE_DENY if self._owned().is_lent and action in _NOT_THE_USERS else sqlite3.SQLITE_OK


def _empty_wal(connection: sqlite3.Connection) -> None:
    """Copy the write-ahead log into the database file. If the user has an open cursor, do nothing, because the next
    commit tries again."""
    with suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
