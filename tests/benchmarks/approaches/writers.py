"""The workload that tells readers apart: all that Postgres allows concurrent writers to do, and that they do."""

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import TracebackType
from uuid import uuid4

import psycopg

from tests.benchmarks.approaches.judge import Record
from tests.benchmarks.approaches.reader import Connection

WRITERS, KEYS = 16, 8
_THINK_SECONDS = 0.004
_PREPARED_SECONDS = 0.02
_IDLE_SECONDS = 1.0
_IDLE_KEY = "idle"

_APPEND = """
INSERT INTO approaches.{table} (kafka_key, number, kafka_value)
SELECT %(key)s, %(version)s + g, repeat('x', 200) FROM generate_series(1, %(records)s) g
"""


class Writers:
    """Sixteen writers on eight keys, and one that is idle in a transaction, renewed every second.

    A transaction takes its id, thinks, locks its key, counts it up, appends one to three records that carry the count,
    thinks, and commits. Some roll back, some roll back to a savepoint, some write below one, some are prepared first.
    The same records go to both outboxes.
    """

    def __init__(self, dsn: str, *, seed: int = 1) -> None:
        self.committed: dict[Record, float] = {}
        """Each record that was committed, and when, by the monotonic clock. Complete once the writers have ended."""
        self._dsn, self._seed = dsn, seed
        self._stop = Event()
        self._pool = ThreadPoolExecutor(WRITERS + 1, thread_name_prefix="writer")
        self._futures: list[Future[None]] = []

    def __enter__(self) -> "Writers":
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            keys = [_IDLE_KEY, *(f"key-{number}" for number in range(KEYS))]
            connection.execute("INSERT INTO approaches.keys SELECT unnest(%s::text[])", (keys,))
            (prepared,) = connection.execute("SHOW max_prepared_transactions").fetchone() or ("0",)
        self._futures = [self._pool.submit(self._work, number, int(prepared) > 0) for number in range(WRITERS)]
        self._futures.append(self._pool.submit(self._idle))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown()
        if error is None:
            for future in self._futures:
                future.result()

    def _work(self, number: int, may_prepare: bool) -> None:  # noqa: FBT001 - submitted to a pool
        draw = random.Random(self._seed * 1_000 + number)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.is_set():
                key = f"key-{draw.randrange(KEYS)}"
                connection.execute("BEGIN")
                connection.execute("SELECT pg_current_xact_id()")
                time.sleep(draw.uniform(0, _THINK_SECONDS))
                dice = draw.random()
                if dice < 0.1:
                    connection.execute("SAVEPOINT undone")
                    _append(connection, key, draw.randint(1, 3))
                    connection.execute("ROLLBACK TO undone")
                elif dice < 0.2:
                    connection.execute("SAVEPOINT kept")
                records = _append(connection, key, draw.randint(1, 3))
                time.sleep(draw.uniform(0, _THINK_SECONDS))
                end = "ROLLBACK" if draw.random() < 0.1 else "COMMIT"
                if may_prepare and draw.random() < 0.05:
                    name = f"approaches-{uuid4()}"
                    connection.execute(f"PREPARE TRANSACTION '{name}'")
                    time.sleep(draw.uniform(0, _PREPARED_SECONDS))
                    end = f"{end} PREPARED '{name}'"
                connection.execute(end)
                if end.startswith("COMMIT"):
                    self.committed.update(dict.fromkeys(records, time.monotonic()))

    def _idle(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.is_set():
                connection.execute("BEGIN")
                records = _append(connection, _IDLE_KEY, 1)
                self._stop.wait(_IDLE_SECONDS)
                connection.execute("COMMIT")
                self.committed.update(dict.fromkeys(records, time.monotonic()))


def _append(connection: Connection, key: str, records: int) -> list[Record]:
    """Lock the key, count it up, append the records."""
    locked = connection.execute("SELECT version FROM approaches.keys WHERE key = %s FOR UPDATE", (key,)).fetchone()
    version = locked[0] if locked else 0
    values = {"key": key, "version": version, "records": records}
    for table in ("outbox", "marked"):
        connection.execute(_APPEND.format(table=table), values)
    connection.execute("UPDATE approaches.keys SET version = version + %s WHERE key = %s", (records, key))
    return [(key, version + number) for number in range(1, records + 1)]
