"""What passes in Postgres parks no message: locks, also under a statement_timeout, and errors that are wrapped."""

from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.consuming import Counting, Running
from support.waiting import eventually

pytestmark = pytest.mark.gate


class Updating(Counting):
    """Changes a row of `counts` for each message, as it comes."""

    def __init__(self, how=lambda error: error):
        super().__init__()
        self.how = how

    def consume_message(self, transaction, message):
        self.calls["all"] += 1
        try:
            transaction.state.execute(
                "INSERT INTO counts VALUES (%s, 1) ON CONFLICT (key) DO UPDATE SET n = counts.n + 1",
                (message.record.key().decode(),),
            )
        except psycopg.Error as error:
            raise self.how(error) from error

    def finalize_txn(self, transaction):
        pass


@contextmanager
def locked(dsn, statement):
    with psycopg.connect(dsn) as connection:
        connection.execute(statement)
        yield
        connection.rollback()


def limited(counted, **settings):
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    counted.dsn = make_conninfo(counted.dsn, options=options)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({"statement_timeout": "400ms"}, lambda error: error),
        ({"statement_timeout": "400ms", "lock_timeout": "10s"}, lambda _: ValueError("wrapped")),
        ({"lock_timeout": "100ms"}, lambda _: ValueError("wrapped")),
    ],
)
@pytest.mark.parametrize("lock", ["LOCK TABLE counts", "INSERT INTO counts VALUES ('a', 1)"])
def test_a_lock_that_lasts_longer_than_all_attempts_parks_nothing(counted, settings, how, lock):
    plain = counted.dsn
    limited(counted, **settings)
    application = Updating(how)
    counted.write(["a", "b", "c"])
    with locked(plain, lock):
        running = Running(counted.shard(application, max_attempts=1).run)
        eventually(lambda: application.calls["all"] > 3 or parked_in(plain), "it is tried again and again")
    eventually(lambda: len(read(plain, "SELECT key FROM counts")) == 3, "all are counted")
    assert running.end() is None
    assert not parked_in(plain)


def read(dsn, query):
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


def parked_in(dsn):
    return read(dsn, 'SELECT "offset" FROM consumers_parked')


def test_a_statement_that_takes_too_long_without_a_lock_is_its_message_s(counted):
    class Slow(Updating):
        def consume_message(self, transaction, message):
            super().consume_message(transaction, message)
            if message.record.key() == b"slow":
                transaction.state.execute("SELECT pg_sleep(600)")

    limited(counted, statement_timeout="200ms")
    counted.write(["a", "slow", "b"])
    running = Running(counted.shard(Slow(), max_attempts=2).run)
    eventually(lambda: counted.counts() == {"a": 1, "b": 1}, "the others are counted")
    assert running.end() is None
    assert [key for _, key, _ in counted.parked()] == [b"slow"]
