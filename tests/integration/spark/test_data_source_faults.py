"""`format("outbox")` while drivers are killed and connections are lost: each row once, none missing."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.outbox_format import FileStream, either, environment, hundred_orders, target, write
from support.servers import crash
from support.sink import Database
from support.waiting import eventually

from harvest_lib.local_stack.postgres import PostgresServer
from harvest_lib.spark.data_source import register
from harvest_lib.spark.sink import queries
from infra.chaos.link import Links

pytestmark = [pytest.mark.full, pytest.mark.spark]

DEADLINE_SECONDS = 150  # a Spark of its own may have to start on a busy machine
_COMMIT_WAITS = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(42); RETURN new; END';
CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON outbox_batches DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION wait()
"""

_LEDGER = "SELECT to_regclass('outbox_batches')"


def waiting(database):
    return database.ask("""
        SELECT pid FROM pg_locks JOIN pg_database d ON d.oid = database
        WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()""")


def promoted(database, batches):
    return database.ask("SELECT count(*) >= %s FROM outbox_batches", batches)[0][0]


def promotions(database):
    return database.ask("SELECT count(*) FROM outbox_batches")[0][0] if database.ask(_LEDGER)[0][0] else 0


class InBackground(threading.Thread):
    """A write that waits for the test. `failed` is the error that it ended with."""

    def __init__(self, spark, write):
        super().__init__()
        self.spark, self.write, self.failed = spark, write, ""

    def run(self):
        try:
            self.spark.createDataFrame(
                [], "n int"
            )  # makes the session this thread's: Spark looks there for data sources
            self.write()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.failed = str(error)


@pytest.fixture(scope="module", params=["classic", pytest.param("connect", marks=pytest.mark.long)])
def spark(request, tmp_path_factory):
    with either(request, tmp_path_factory) as made:
        yield made


@pytest.fixture
def stream(spark, database, tmp_path):
    """A stream of one micro-batch that is written, and a second one to come."""
    made = FileStream(spark, database, tmp_path)
    made.add(0)
    made.run()
    made.add(1)
    return made


@pytest.fixture
def server(tmp_path):
    """A Postgres of the test's own, to be killed."""
    made = PostgresServer(tmp_path / "postgres", durable=False)
    made.start()
    yield made
    made.stop()


@contextmanager
def held(database, moment):
    """Hold the promotion before its statement, or at its commit, for as long as the block lasts."""
    with psycopg.connect(database.dsn) as holder:
        if moment == "commit":
            database.connection.execute(_COMMIT_WAITS)
            holder.execute("SELECT pg_advisory_xact_lock(42)")
        else:
            holder.execute(queries.LOCK_OUTBOX, {"outbox": "outbox"})
        yield


@contextmanager
def driver(spark, database, folder):
    """A driver of its own, with all its processes in a group: as the session, classic or a server and its client."""
    way = "connect" if "connect" in type(spark).__module__ else "classic"
    command = [sys.executable, "-m", "support.stream_driver", way, str(folder)]
    with (folder / "driver.log").open("w") as log, subprocess.Popen(
        command, cwd=folder, env=environment() | {"STREAM_DSN": database.dsn}, stdout=log, stderr=log,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            kill(process)


def kill(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("moment", ["promotion", "commit"])
@pytest.mark.timeout(400)
def test_a_driver_that_is_killed_while_it_promotes_is_made_good(stream, database, tmp_path, moment):
    with held(database, moment), driver(stream.spark, database, tmp_path) as process:
        eventually(lambda: waiting(database) or process.poll() is not None, seconds=DEADLINE_SECONDS)
        assert process.poll() is None, (tmp_path / "driver.log").read_text()[-3_000:]
        kill(process)
        assert stream.numbers() == list(range(10))
    stream.add(2)
    stream.run()
    assert stream.numbers() == list(range(30))
    assert database.ask("SELECT batch, rows FROM outbox_batches ORDER BY batch") == [
        (f"orders:{number}", 10) for number in range(3)
    ]


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.timeout(3_600)
def test_a_driver_that_is_killed_at_any_moment_is_made_good(stream, database, tmp_path, kills):
    dice = random.Random(kills)
    for number in range(kills):
        for more in range(4):
            stream.add(2 + 4 * number + more)
        with driver(stream.spark, database, tmp_path) as process:
            eventually(partial(promoted, database, 3 + 4 * number), seconds=DEADLINE_SECONDS)
            time.sleep(dice.uniform(0, 2))  # of a run of several seconds
            kill(process)
    stream.run()
    assert stream.numbers() == list(range(10 * (2 + 4 * kills)))


@pytest.mark.parametrize("moment", ["promotion", "commit"])
def test_a_connection_that_is_lost_while_the_driver_promotes_is_made_anew(stream, database, moment):
    info = conninfo_to_dict(database.dsn)
    with Links() as links:
        link = links.add()
        link.forward_to(str(info["host"]), int(info["port"]))
        dsn = target(make_conninfo(database.dsn, host=link.host, port=link.port))["dsn"]
        run = InBackground(stream.spark, lambda: stream.run(dsn=dsn))
        with held(database, moment):
            run.start()
            eventually(lambda: run.failed or waiting(database), seconds=DEADLINE_SECONDS)
            assert not run.failed
            link.cut()
            link.heal()
            eventually(lambda: len(waiting(database)) > 1, seconds=DEADLINE_SECONDS)  # it has come again
        run.join(DEADLINE_SECONDS)
        assert not run.failed
    assert stream.numbers() == list(range(20))


def test_sessions_of_tasks_that_are_ended_leave_nothing_and_the_query_goes_on(stream, database):
    ((table,),) = database.ask("SELECT relname FROM pg_class WHERE relname ~ '^outbox_staging_'")
    with psycopg.connect(database.dsn) as holder:
        holder.execute(f'LOCK TABLE "{table}" IN SHARE ROW EXCLUSIVE MODE')
        run = InBackground(stream.spark, stream.run)
        run.start()
        copying = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE query LIKE 'COPY%' AND datname = current_database()"""
        eventually(lambda: database.ask(copying), seconds=DEADLINE_SECONDS)
        run.join(DEADLINE_SECONDS)
    if "connect" in type(stream.spark).__module__:  # whose tasks are tried again
        assert not run.failed
    else:
        assert "the connection was lost while staging partition 0" in run.failed
        assert stream.numbers() == list(range(10))
    stream.run()
    assert stream.numbers() == list(range(20))
    assert database.ask(f'SELECT count(*) FROM "{table}"') == [(0,)]  # noqa: S608


def test_staged_rows_that_postgres_lost_in_a_crash_are_missed(spark, database):
    """The staging table is unlogged: a crash empties it."""
    register(spark)
    frame = hundred_orders(spark)
    write(frame, database.dsn, "a")
    ((table,),) = database.ask("SELECT relname FROM pg_class WHERE relname ~ '^outbox_staging_'")
    with psycopg.connect(database.dsn) as holder:
        holder.execute(queries.LOCK_OUTBOX, {"outbox": "outbox"})
        run = InBackground(spark, lambda: write(frame, database.dsn, "b"))
        run.start()
        eventually(lambda: run.failed or waiting(database), seconds=DEADLINE_SECONDS)
        assert not run.failed
        database.connection.execute(f'DELETE FROM "{table}"')  # noqa: S608
    run.join(DEADLINE_SECONDS)
    assert "the tasks name 100 rows; 0 of them are staged" in run.failed
    assert database.counts() == {"outbox": 100, "outbox_batches": 1}
    write(frame, database.dsn, "b")
    assert database.counts() == {"outbox": 200, "outbox_batches": 2}


@pytest.mark.parametrize("moment", ["promotion", "commit"])
def test_a_postgres_that_crashes_while_the_driver_promotes_has_all_or_nothing(spark, server, tmp_path, moment):
    database = Database(server.dsn)
    stream = FileStream(spark, database, tmp_path)
    stream.add(0)
    stream.run()
    stream.add(1)
    run = InBackground(spark, stream.run)
    with pytest.raises(psycopg.OperationalError), held(database, moment):  # the holder's connection is lost too
        run.start()
        eventually(lambda: run.failed or waiting(database), seconds=DEADLINE_SECONDS)
        assert not run.failed
        crash(server)
    run.join(DEADLINE_SECONDS)
    assert "0 of them are staged" in run.failed
    stream.database = Database(server.dsn)
    assert stream.numbers() == list(range(10))
    stream.run()
    assert stream.numbers() == list(range(20))


@pytest.mark.parametrize("crashes", [3, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.timeout(3_600)
def test_a_postgres_that_crashes_at_any_moment_has_each_row_once(spark, server, tmp_path, crashes):
    stream = FileStream(spark, Database(server.dsn), tmp_path)
    dice, met = random.Random(crashes), 0
    for number in range(crashes):
        for more in range(4):
            stream.add(4 * number + more)
        database = Database(server.dsn)
        before = promotions(database)
        run = InBackground(spark, stream.run)
        run.start()
        eventually(lambda run=run, there=before, on=database: not run.is_alive() or promotions(on) > there, seconds=150)
        time.sleep(dice.uniform(0, 1.5))  # of three micro-batches that are left
        met += run.is_alive()
        crash(server)
        run.join(DEADLINE_SECONDS)
        assert not run.is_alive()
    assert met, "no crash met a query"
    stream.database = Database(server.dsn)
    stream.run()
    assert stream.numbers() == list(range(40 * crashes))


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_micro_batch_that_spark_repeats_again_and_again_is_written_once(stream):
    stream.run()
    for number in range(100):
        stream.forget_commit()
        stream.add(number + 2)
        stream.run()
    assert stream.numbers() == list(range(10 * 102))
