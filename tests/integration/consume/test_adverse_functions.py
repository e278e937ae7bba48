"""Functions that do to a shard what they are not to do: each is that message's alone, and the partition goes on."""

import os
import re
import sys
import threading
from collections import Counter
from contextlib import suppress

import psycopg
import pytest
from psycopg import sql
from support.consuming import Counting, Running
from support.waiting import eventually

pytestmark = pytest.mark.gate


class Adverse(Counting):
    """Counts at once, and does something else for the message `bad`."""

    def __init__(self, does, most=sys.maxsize):
        super().__init__()
        self.does, self.left = does, most

    def consume_message(self, transaction, message):
        key = message.record.key().decode()
        self.calls[key] += 1
        transaction.state.execute(
            "INSERT INTO counts VALUES (%s, 1) ON CONFLICT (key) DO UPDATE SET n = counts.n + 1", (key,)
        )
        if key == "bad" and self.left:
            self.left -= 1
            return self.does(transaction.state)
        return None

    def finalize_txn(self, transaction):
        """Write nothing more."""


class AtOnce(Adverse):
    def consume_messages(self, transaction, messages):
        returned = [self.consume_message(transaction, message) for message in messages]
        return next((each for each in returned if each is not None), None)


def left_in_a_copy(state):
    state.cursor().copy("COPY counts FROM STDIN").__enter__()


def left_half_read(state):
    rows = state.cursor().stream("SELECT * FROM generate_series(1, 100000)")
    next(rows)
    raise ValueError("half read")


def closed_and_used(state):
    state.close()
    state.execute("SELECT 1")


def committed_by_with(state):
    with state:
        pass


def rolled_back_for(state):
    try:
        int("no number")
    except ValueError:
        state.rollback()
        raise


def returned_work(_state):
    async def work():
        """Count it later."""

    return work()


def returned_generator(state):
    return (state.execute("SELECT 1") for _ in range(1))


def raised_a_text(text):
    def does(_state):
        raise ValueError(text)

    return does


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


def recursed(state):
    recursed(state)


def out_of_memory(_state):
    return bytearray(1 << 60)


def raised_group(_state):
    raise ExceptionGroup("several", [ValueError("one"), ConnectionError("two")])


def raised_unspeakable(_state):
    raise Unspeakable


ADVERSE = {
    "closes": (lambda state: state.close(), r"close\(\) is not for a function"),
    "closes and goes on": (closed_and_used, r"close\(\) is not"),
    "commits": (lambda state: state.commit(), r"commit\(\) is not"),
    "commits by with": (committed_by_with, r"commit\(\) is not"),
    "rolls back": (rolled_back_for, r"rollback\(\) is not"),
    "raises Rollback": (lambda _state: (_ for _ in ()).throw(psycopg.Rollback), "Rollback"),
    "leaves COPY": (left_in_a_copy, "unfinished"),
    "leaves rows": (left_half_read, "half read"),
    "sets autocommit": (lambda state: state.set_autocommit(False), "autocommit"),
    "is too slow": (lambda state: state.execute("SET LOCAL statement_timeout = 1; SELECT pg_sleep(9)"), "timeout"),
    "returns a coroutine": (returned_work, "returned a coroutine"),
    "returns a generator": (returned_generator, "returned a generator"),
    "raises NUL": (raised_a_text("\0 \ud800 \N{PILE OF POO}"), r"\\x00 \\ud800 "),
    "raises much": (raised_a_text("x" * 50_000_000), "xxx"),
    "raises what has no text": (raised_unspeakable, "is unavailable"),
    "recurses": (recursed, "RecursionError"),
    "has no memory": (out_of_memory, "MemoryError"),
    "raises a group": (raised_group, "several"),
}


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("application", [Adverse, AtOnce])
@pytest.mark.parametrize(("does", "says"), ADVERSE.values(), ids=ADVERSE)
def test_what_a_function_does_to_its_shard_is_its_message_s_alone(counted, application, does, says):
    publisher = counted.publisher()
    for key in ("a", "bad", "b"):
        publisher.publish_uncommitted(counted.topic, b"v", key=key)
    publisher.acknowledge(publisher.intents())
    publisher.flush()
    counted.write(["c"])
    made = application(does)
    running = Running(counted.shard(made, max_attempts=2).run)
    eventually(lambda: running.error or counted.counts().get("c"), "the others are counted")
    assert running.end() is None
    assert counted.counts() == {"a": 1, "b": 1, "c": 1}
    ((_, key, reason),) = counted.parked()
    assert key == b"bad"
    assert re.search(says, reason), reason


def deadlocked(dsn):
    """Have Postgres end a transaction for a deadlock, as another takes the locks the other way round."""

    def does(state):
        state.execute("SELECT pg_advisory_xact_lock(1)")
        with psycopg.connect(dsn) as other:
            other.execute("SET deadlock_timeout = '1h'; SELECT pg_advisory_xact_lock(2)")
            pid = other.info.backend_pid

            def wait():
                with suppress(psycopg.errors.QueryCanceled):
                    other.execute("SELECT pg_advisory_xact_lock(1)")

            waits = threading.Thread(target=wait)
            waits.start()
            with psycopg.connect(dsn, autocommit=True) as seen:
                asked = "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = %s"
                eventually(lambda: seen.execute(asked, (pid,)).fetchone()[0], "it waits")
            try:
                state.execute("SET LOCAL deadlock_timeout = '1ms'; SELECT pg_advisory_xact_lock(2)")
            finally:
                with psycopg.connect(dsn, autocommit=True) as seen:
                    seen.execute("SELECT pg_cancel_backend(%s)", (pid,))
                waits.join(60)

    return does


class OurError(Exception):
    pass


def from_it(does):
    def wrapped(state):
        try:
            does(state)
        except psycopg.Error as error:
            raise OurError("it did not work") from error

    return wrapped


def while_it_was_handled(does):
    def wrapped(state):
        try:
            does(state)
        except psycopg.Error:
            raise OurError("it did not work")  # noqa: B904 - as applications do

    return wrapped


def hiding_it(does):
    def wrapped(state):
        try:
            does(state)
        except psycopg.Error:
            raise OurError("it did not work") from None

    return wrapped


def in_a_group(does):
    def wrapped(state):
        try:
            does(state)
        except psycopg.Error as error:
            raise ExceptionGroup("tasks", [error]) from None

    return wrapped


def could_not_serialize(state):
    state.execute("DO $$ BEGIN RAISE 'conflict' USING ERRCODE = '40001'; END $$")


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("wrap", [from_it, while_it_was_handled, hiding_it, in_a_group])
@pytest.mark.parametrize("kind", ["deadlock", "serialization"])
def test_what_passes_parks_nothing_however_the_application_raises_it(counted, wrap, kind):
    does = wrap(deadlocked(counted.dsn) if kind == "deadlock" else could_not_serialize)
    counted.write(["a", "bad", "b"])
    application = Adverse(does, most=3)
    running = Running(counted.shard(application, max_attempts=1).run)
    eventually(lambda: running.error or counted.counts().get("b"), "all are counted")
    assert running.end() is None
    assert counted.counts() == {"a": 1, "bad": 1, "b": 1}
    assert counted.parked() == []
    assert application.calls["bad"] == 4


def test_an_error_of_its_own_after_a_savepoint_is_the_message_s(counted):
    def does(state):
        try:
            with state.transaction():
                could_not_serialize(state)
        except psycopg.Error:
            raise OurError("another reason")  # noqa: B904 - as applications do

    counted.write(["a", "bad", "b"])
    running = Running(counted.shard(Adverse(does), max_attempts=2).run)
    eventually(lambda: running.error or counted.counts().get("b"), "the others are counted")
    assert running.end() is None
    assert [key for _, key, _ in counted.parked()] == [b"bad"]


ENDS = {
    "by sys.exit": (lambda: sys.exit(3), 3),
    "by an error": (lambda: int("no number"), 1),
    "by returning": (lambda: None, 0),
}


@pytest.mark.parametrize(("ends", "code"), ENDS.values(), ids=ENDS)
def test_a_process_that_a_function_forks_does_not_go_on_as_the_shard(counted, ends, code):
    codes = []

    def does(_state):
        child = os.fork()
        if not child:
            ends()
            return
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    counted.write(["a", "bad", "b"])
    running = Running(counted.shard(Adverse(does), max_attempts=1).run)
    eventually(lambda: running.error or counted.counts().get("b"), "all are counted")
    assert running.end() is None
    assert counted.counts() == {"a": 1, "bad": 1, "b": 1}
    assert counted.parked() == []
    assert codes == [code]


SETTINGS = [
    "SET statement_timeout = '1h'",
    "SET synchronous_commit = off",
    "SET LOCAL synchronous_commit = off",
    "SET default_transaction_isolation = 'serializable'",
    "SET DateStyle = 'German'",
    "SET client_encoding = 'LATIN1'",
    "SET standard_conforming_strings = off",
    "SET row_security = off",
    "SET session_replication_role = replica",
    "DISCARD TEMP",
    "LISTEN something",
]


def test_a_block_that_a_function_leaves_ends_with_the_transaction(counted):
    left = []

    def does(state):
        left.append(state.transaction())
        left[-1].__enter__()

    counted.write(["a", "bad"])
    running = Running(counted.shard(Adverse(does)).run)
    eventually(lambda: running.error or counted.counts().get("bad"), "it is counted")
    counted.write(["bad", "b"])
    eventually(lambda: running.error or counted.counts().get("b"), "so are the next ones")
    assert running.end() is None
    assert counted.counts() == {"a": 1, "bad": 2, "b": 1}
    assert counted.parked() == []


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("statement", SETTINGS)
def test_settings_that_a_function_makes_lose_nothing(counted, statement):
    counted.write(["a", "bad"])
    running = Running(counted.shard(Adverse(lambda state: state.execute(statement))).run)
    eventually(lambda: running.error or counted.counts().get("bad"), "it is counted")
    counted.write(["b"])
    eventually(lambda: running.error or counted.counts().get("b"), "it is counted")
    assert running.end() is None
    assert counted.counts() == {"a": 1, "bad": 1, "b": 1}
    assert counted.parked() == []


LEAKS = ["SET default_transaction_read_only = on", "SET search_path = nowhere", "SET ROLE"]


@pytest.fixture
def role(counted, unique):
    """A role that may write the checkpoint, and no counts."""
    name = sql.Identifier(unique("role"))
    with psycopg.connect(counted.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {0}; GRANT ALL ON consumers, consumers_parked TO {0}").format(name))
        yield name.as_string()
        connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(name))


@pytest.mark.parametrize("statement", LEAKS)
def test_settings_that_a_function_leaves_park_no_later_message(counted, role, statement):
    def does(state):
        state.execute(f"SET ROLE {role}" if statement == "SET ROLE" else statement)

    counted.write(["a", "bad"])
    running = Running(counted.shard(Adverse(does)).run)
    eventually(lambda: running.error or counted.counts().get("bad"), "it is counted")
    counted.write(["b", "c"])
    eventually(lambda: running.error or counted.counts().get("c"), "the later ones are counted")
    assert running.end() is None
    assert counted.counts() == {"a": 1, "bad": 1, "b": 1, "c": 1}
    assert counted.parked() == []


@pytest.mark.parametrize("statement", ["SET synchronous_commit = off", "SET LOCAL synchronous_commit = off"])
def test_a_commit_is_durable_whatever_a_function_has_set(counted, statement):
    counted.write(["bad"])
    with psycopg.connect(counted.dsn, autocommit=True) as connection:
        connection.execute(
            """
            CREATE TABLE seen (setting text);
            CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER see AFTER UPDATE ON consumers DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION see();
            """
        )
        running = Running(counted.shard(Adverse(lambda state: state.execute(statement))).run)
        eventually(lambda: running.error or counted.counts(), "it is counted")
        assert running.end() is None
        assert {setting for (setting,) in connection.execute("SELECT setting FROM seen")} == {"on"}


def test_a_thread_that_a_function_leaves_delays_its_statements_alone(counted):
    threads = []

    def does(state):
        def works():
            with suppress(psycopg.Error):
                state.execute("SELECT pg_sleep(0.3)")

        threads.append(threading.Thread(target=works))
        threads[-1].start()

    counted.write(["a", "bad", "b"])
    running = Running(counted.shard(Adverse(does), max_attempts=5).run)
    eventually(lambda: running.error or counted.counts().get("b"), "the others are counted")
    assert running.end() is None
    assert counted.counts().keys() >= {"a", "b"}
    assert Counter(counted.counts().values()).keys() == {1}
