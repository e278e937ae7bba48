"""Writers of traceable records: each transaction locks the rows of its keys, then inserts a record for each key.

The value of a record has its event id and its sequence number within its key. The history gets each transaction before
the writer requests the commit. Afterwards it gets the result, which may be unknown to the writer.
"""

import hashlib
import json
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Self

import psycopg

from harvest_lib.errors import HarvestError
from harvest_lib.outbox import append
from harvest_lib.record import OutboxRecord, RecordLimits
from infra.chaos.history.events import EventType, Write, WrittenRecord
from infra.chaos.history.writer import HistoryWriter

_LOCK_FIRST = "SELECT pg_advisory_xact_lock(hashtext(key)) FROM unnest(%s::text[]) AS keys(key)"
"""An advisory lock assigns no transaction id; a row lock does."""
_LOCK = "SELECT FROM chaos_keys WHERE key = ANY(%s) ORDER BY key FOR UPDATE"
_COUNT = "UPDATE chaos_keys SET seq = seq + 1 WHERE key = ANY(%s) RETURNING key, seq"
"""Runs after the rows are locked, because this statement locks rows in no defined order."""
_NOTE = "INSERT INTO chaos_written SELECT unnest(%s::uuid[])"
_TABLE = """
CREATE TABLE chaos_written (event uuid PRIMARY KEY);  -- outlasts what is purged
CREATE TABLE chaos_keys (key text PRIMARY KEY, seq bigint NOT NULL);
INSERT INTO chaos_keys SELECT 'key-' || g, 0 FROM generate_series(1, {keys}) g;
INSERT INTO chaos_keys SELECT 'slow-' || g, 0 FROM generate_series(1, {slow}) g
"""
SLOW_KEYS = 5
_LIMITS = RecordLimits(value_chars=None)
_MOST_RECORDS = 20
_MOST_PIECES = 3
_LATE_SECONDS = 20.0
"""The longest delay that a writer makes up for."""
_ROLLED_BACK = 0.08
_VALUE_BYTES = 200
_RETRY_SECONDS = 0.2
_BEHIND_SECONDS = 0.1
_CONNECT_SECONDS = 5


def make_tables(dsn: str, keys: int) -> None:
    """Create the tables that the writers need in addition to the outbox."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TABLE.format(keys=keys, slow=SLOW_KEYS).encode())


def hash_of(value: bytes) -> str:
    """Return the hash that represents a record's value in the history."""
    return hashlib.blake2s(value, digest_size=8).hexdigest()


class Writing:
    """One recorded transaction of a writer. Call `write` any number of times, then `end` once."""

    def __init__(
        self, history: HistoryWriter, process: str, topic: str, answered: set[str], *, locks_first: bool = False
    ) -> None:
        """Prepare. Event ids are added to `answered` when the commit is confirmed. With `locks_first` the transaction
        gets its id only after it has locked all its keys, so that transaction ids follow the commit order of a key."""
        self._history, self._process, self._topic, self._answered = history, process, topic, answered
        self._locks_first = locks_first
        self._transaction = str(uuid.uuid4())
        self._records: list[WrittenRecord] = []
        self._is_told = False

    def write(self, connection: psycopg.Connection[Any], keys: list[str], padding: str = "") -> None:
        """Write a record for each key. `keys` must be in ascending order, because other orders may deadlock writers.
        `padding` makes the records larger.
        """
        if self._locks_first:
            connection.execute(_LOCK_FIRST, (keys,))
        connection.execute(_LOCK, (keys,))
        records = []
        for key, seq in connection.execute(_COUNT, (keys,)):
            event = str(uuid.uuid4())
            value = json.dumps({"event": event, "seq": seq, "padding": padding}).ljust(_VALUE_BYTES)
            records.append(OutboxRecord(topic=self._topic, key=key, value=value))
            self._records.append(
                WrittenRecord(event=event, topic=self._topic, key=key, seq=seq, hash=hash_of(value.encode()))
            )
        connection.execute(_NOTE, ([record.event for record in self._records[-len(records) :]],))
        append(connection, records, limits=_LIMITS)

    @property
    def events(self) -> tuple[str, ...]:
        """The event ids of the records written so far."""
        return tuple(record.event for record in self._records)

    def begin_end(self) -> None:
        """Record that the transaction is about to be committed or rolled back."""
        self._tell("invoke")
        self._is_told = True

    def end(self, how: EventType) -> None:
        """Record the result: `ok` committed, `fail` rolled back, `info` unknown."""
        if not self._is_told:
            self.begin_end()
        if how == "ok":  # first, so that the set has every write that the history has as confirmed
            self._answered.update(record.event for record in self._records)
        self._tell(how)

    def _tell(self, kind: EventType) -> None:
        self._history.append(
            Write(type=kind, process=self._process, transaction=self._transaction, records=tuple(self._records))
        )


class Writers:
    """Threads that together write at a given rate until they are stopped; a context manager."""

    def __init__(
        self,
        dsn: Callable[[], str],
        history: HistoryWriter,
        topic: str,
        *,
        keys: int,
        rate: float,
        threads: int,
        seed: int,
        answered: set[str],
        is_behind: Callable[[], bool],
        locks_first: bool = False,
    ) -> None:
        """Prepare. `rate` is in records per second, of all threads together. Threads pause while `is_behind` is true.
        `Writing` explains the other arguments."""
        self._dsn, self._history, self._topic, self._keys = dsn, history, topic, keys
        self._pause_seconds = threads * (1 + _MOST_RECORDS) / 2 / (1 - _ROLLED_BACK) / rate
        self._stop = threading.Event()
        self._answered, self._is_behind, self._locks_first = answered, is_behind, locks_first
        self._threads = [
            threading.Thread(target=self._run, args=(number, seed), name=f"chaos-writer-{number}", daemon=True)
            for number in range(threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the threads, and wait until their last transactions have ended. Safe to repeat."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int, seed: int) -> None:
        draw = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret
        due = time.monotonic()
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._dsn(), connect_timeout=_CONNECT_SECONDS) as connection:
                    while not self._stop.wait(max(0.0, due - time.monotonic())):
                        due = max(due, time.monotonic() - _LATE_SECONDS)
                        due += draw.uniform(0.5, 1.5) * self._pause_seconds
                        if self._is_behind():
                            due = time.monotonic() + _BEHIND_SECONDS
                            continue
                        self._transaction(connection, f"writer-{number}", draw)
            except (psycopg.Error, HarvestError):
                self._stop.wait(_RETRY_SECONDS)

    def _transaction(self, connection: psycopg.Connection[Any], process: str, draw: random.Random) -> None:
        keys = sorted(f"key-{key}" for key in draw.sample(range(1, self._keys + 1), draw.randint(1, _MOST_RECORDS)))
        size = len(keys) if self._locks_first else -(-len(keys) // draw.randint(1, _MOST_PIECES))
        writing = Writing(self._history, process, self._topic, self._answered, locks_first=self._locks_first)
        try:
            for start in range(0, len(keys), size):
                writing.write(connection, keys[start : start + size])
        except (psycopg.Error, HarvestError):
            writing.end("fail")  # no commit was requested
            raise
        writing.begin_end()
        if draw.random() < _ROLLED_BACK:
            connection.rollback()
            writing.end("fail")
            return
        try:
            connection.commit()
        except psycopg.Error:
            writing.end("info")
            raise
        writing.end("ok")
