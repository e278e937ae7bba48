"""Writers whose records can be checked by value alone: the value of a record is its key's version."""

import random
import threading

import psycopg

from harvest_lib.outbox import append
from harvest_lib.record import OutboxRecord

KEYS = 40


class Writers:
    """Threads that lock a key's row, count it up and append a record, some transactions rolling back."""

    def __init__(self, outbox, threads=3, pause_seconds=0.002):
        self._outbox = outbox
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        outbox.connection.execute("CREATE TABLE aggregate (key text PRIMARY KEY, version int NOT NULL)")
        outbox.connection.execute("INSERT INTO aggregate SELECT 'key-' || g, 0 FROM generate_series(1, %s) g", (KEYS,))
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(threads)]

    def _write(self, seed):
        draw = random.Random(seed)
        with psycopg.connect(self._outbox.dsn) as connection:
            while not self._stop.wait(self._pause_seconds):
                keys = sorted({f"key-{draw.randint(1, KEYS)}" for _ in range(draw.randint(1, 3))})
                for key in keys:
                    version = connection.execute(
                        "UPDATE aggregate SET version = version + 1 WHERE key = %s RETURNING version", (key,)
                    ).fetchone()[0]
                    append(connection, [OutboxRecord(topic=self._outbox.topic, key=key, value=str(version))])
                connection.rollback() if draw.random() < 0.1 else connection.commit()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def committed(self):
        return dict(self._outbox.connection.execute("SELECT key, version FROM aggregate").fetchall())
