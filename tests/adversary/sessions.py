"""Sessions of Postgres that attack, and those that go on writing beside, each of a role that may insert and no more."""

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg
from adversary.attacks import KEYS, ROLLED_BACK, Copied, Flood, Forbidden, Row, Statement, Undone
from psycopg import sql

_WRITTEN = ["create_time", "kafka_topic", "kafka_key", "kafka_value", "kafka_header_keys", "kafka_header_values"]
_INTO = sql.SQL("INSERT INTO public.outbox ({})").format(sql.SQL(", ").join(map(sql.Identifier, _WRITTEN)))
_INSERT = _INTO + sql.SQL(" VALUES (%s::timestamptz, %s, %s, %s, %s::text[], %s::text[])")
_PLAIN = _INTO + sql.SQL(" VALUES (now(), %s, %s, %s, '{{}}', '{{}}')").format()
_FLOOD = _INTO + sql.SQL(" SELECT now(), %s, %s, repeat('f', %s), '{{}}', '{{}}' FROM generate_series(1, %s)").format()
_COPY = sql.SQL("COPY public.outbox ({}) FROM STDIN").format(sql.SQL(", ").join(map(sql.Identifier, _WRITTEN)))
_FORBIDDEN = sql.SQL(
    "INSERT INTO public.outbox ({}, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) "
    "VALUES (NULL, now(), %s, 'key-0', '{{}}', '{{}}')"
)


class Adversary:
    """Threads that attack, one session each, until they are stopped. `done` and `refused` count their attacks."""

    def __init__(self, dsn, listed, drawn, *, threads=3, number=0, pause_seconds=0.02):
        self._dsn, self._drawn, self._pause_seconds = dsn, drawn, pause_seconds
        self.done, self.refused, self.error = Counter(), Counter(), None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._listed = list(listed)
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(number * 100 + at),)) for at in range(threads)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def attack(self, attack):
        """Do one now, on a session of its own."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            self._attack(connection, attack)

    @property
    def has_tried_all(self):
        """Return True if each of the listed attacks was tried."""
        return not self._listed

    def _run(self, draw):
        connection = None
        try:
            while not self._stop.wait(self._pause_seconds):
                with self._lock:
                    attack = self._listed.pop() if self._listed else draw.choice(self._drawn)
                if (
                    connection is None or connection.closed or draw.random() < 0.1
                ):  # some of what it did stays, for long
                    if connection is not None:
                        connection.close()
                    connection = psycopg.connect(self._dsn, autocommit=True)
                try:
                    self._attack(connection, attack)
                except psycopg.Error as error:
                    self._count(self.refused, "transaction", error)
                    with suppress(psycopg.Error):
                        connection.rollback()
        except Exception as error:  # noqa: BLE001 - it is looked at
            self.error = error
        finally:
            if connection is not None:
                connection.close()

    def _count(self, counter, what, error=None):
        with self._lock:
            counter[what if error is None else f"{what}: {type(error).__name__}"] += 1

    def _attack(self, connection, attack):
        if attack.alone:
            for step in attack.steps:
                self._step(connection, step)
            return
        connection.execute(f"BEGIN ISOLATION LEVEL {attack.isolation}")
        for step in attack.steps:
            self._step(connection, step)
        self._stop.wait(attack.hold_seconds)
        if attack.end == "disconnect":
            connection.close()
        else:
            connection.execute(attack.end)
        self._count(self.done, attack.end)

    def _step(self, connection, step):
        """Do one, behind a savepoint where there is a transaction, so that what is refused costs only itself."""
        what = type(step).__name__
        try:
            if isinstance(step, Statement) and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                connection.execute(step.text)
            else:
                with connection.transaction(force_rollback=isinstance(step, Undone)):
                    self._write(connection, step)
        except (psycopg.Error, UnicodeError) as error:
            self._count(self.refused, what, error)
            if connection.closed:
                raise psycopg.OperationalError("it was ended") from error
        else:
            self._count(self.done, what)

    def _write(self, connection, step):
        match step:
            case Row():
                connection.execute(_INSERT, _values(step))
            case Undone():
                for each in step.rows:
                    connection.execute(_INSERT, _values(each))
            case Flood():
                connection.execute(_FLOOD, (step.topic, step.key, step.value_bytes, step.records))
            case Copied():
                with connection.cursor().copy(_COPY) as copy:
                    for each in step.rows:
                        copy.write_row(_values(each))
            case Statement():
                connection.execute(step.text)
            case Forbidden():
                connection.execute(_FORBIDDEN.format(sql.Identifier(step.column)), (step.topic,))


def _values(row):
    return row.created, row.topic, row.key, row.value, row.names or [], row.contents or []


@dataclass
class Honest:
    """Writes to its own topics, with the keys that the adversary uses as well; now and then it rolls back.

    `committed` are by (topic, key) the values in the order of commits, with when each was committed. A failure of its
    own statements is one of the test: nobody may keep it from writing.
    """

    dsn: str
    topics: tuple
    number: int = 0
    keys: str = "key"
    pause_seconds: float = 0.02
    committed: dict = field(default_factory=dict)
    records: int = 0
    rolled_back: int = 0
    slowest_seconds: float = 0.0
    error: Exception | None = None

    def __enter__(self):
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self):
        draw = random.Random(self.number)
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                while not self._stop.wait(self.pause_seconds):
                    self._transaction(connection, draw)
        except Exception as error:  # noqa: BLE001 - it is looked at
            self.error = error

    def _transaction(self, connection, draw):
        begun = time.monotonic()
        undo = draw.random() < 0.1
        written = []
        with connection.transaction(force_rollback=undo):
            for _ in range(draw.randint(1, 3)):
                place = draw.choice(self.topics), f"{self.keys}-{draw.randrange(KEYS)}"
                self.records += 1
                value = f"{ROLLED_BACK if undo else ''}{self.records}"
                connection.execute(_PLAIN, (*place, value))
                written.append((place, value))
        now = time.monotonic()
        self.slowest_seconds = max(self.slowest_seconds, now - begun)
        self.rolled_back += undo
        for place, value in written if not undo else ():
            self.committed.setdefault(place, []).append((value, now))
