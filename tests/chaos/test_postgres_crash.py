"""Postgres dies, and comes back with less than was read from it, or another one takes its place.

Every commit that is there afterwards is delivered, and nothing that is not there was; or the harvester halts and says
why. It never skips in silence. Contents tell: ids, of records and of transactions, come again.
"""

import threading
import uuid

import psycopg
import pytest
from support.native_outbox import NativeOutbox
from support.outbox import harvest_config, read_topic
from support.servers import await_replicated, crash, either, freeze_wal_writer, standby_of
from support.waiting import eventually

from harvest_lib.errors import DatabaseUnavailable, HarvestError, ServerRegressed
from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.local_stack.postgres import PostgresServer
from harvest_lib.outbox import OutboxTable
from harvest_lib.source import MarkSource, Selection, SnapshotSource, TransactionIdSource, server_identity

pytestmark = pytest.mark.full

long = pytest.mark.long

INSERT = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s)"


@pytest.fixture
def postgres(tmp_path):
    """A server of the test's own that nothing happens on by itself."""
    made = PostgresServer(tmp_path / "primary", durable=False)
    made.start()
    with psycopg.connect(made.dsn, autocommit=True) as connection:
        for setting in ("autovacuum = off", "bgwriter_lru_maxpages = 0", "wal_writer_delay = '10s'"):
            connection.execute(f"ALTER SYSTEM SET {setting}")
        connection.execute("SELECT pg_reload_conf()")
    yield made
    made.kill()


@pytest.fixture
def topic(make_topic):
    return make_topic(4)


class Writer:
    """Writes records whose contents never come again."""

    def __init__(self, dsn, topic, *, synchronous_commit="on"):
        self._topic = topic
        self._connection = psycopg.connect(dsn, options=f"-c synchronous_commit={synchronous_commit}")

    def commit(self, number=1, what="value"):
        """Commit so many transactions, each with one record."""
        for _ in range(number):
            self._write(what)
            self._connection.commit()

    def roll_back(self, number=1):
        for _ in range(number):
            self._write("rolled back")
            self._connection.rollback()

    def _write(self, what):
        self._connection.execute(INSERT, (self._topic, f"key-{uuid.uuid4().int % 200}", f"{what} {uuid.uuid4()}"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._connection.close()


def values(dsn):
    """Return the contents of the table."""
    with psycopg.connect(dsn) as connection:
        return [value for (value,) in connection.execute("SELECT kafka_value FROM outbox ORDER BY id")]


def read_all(source):
    """Return the contents of what a source has, and the last position."""
    found, position = [], None
    while (page := source.read(100)) is not None:
        found += [row[3] for row in page.rows]
        position = page.position
    return found, position


def no_barrier(connection):
    """Stand for the barrier: say how far the log is on disk, and put nothing there."""
    return connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()[0]


# -- the barrier, step by step

SOURCES = [pytest.param(SnapshotSource, id="snapshot"), pytest.param(TransactionIdSource, id="transaction_id")]


@pytest.fixture
def source(postgres, topic, kind):
    NativeOutbox(postgres.dsn, topic).close()
    made = kind(postgres.dsn, Selection(table=OutboxTable.parse("outbox").identifier))
    made.open(None)
    freeze_wal_writer(postgres)
    yield made
    made.close()


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("has_barrier", [True, False])
def test_what_was_read_is_there_after_a_crash(postgres, source, topic, monkeypatch, has_barrier):
    """Without the barrier it would not be: this test sees what it is for."""
    if not has_barrier:
        monkeypatch.setattr(server_identity, "barrier", no_barrier)
    with Writer(postgres.dsn, topic, synchronous_commit="off") as writer:
        writer.commit()
        found, _ = read_all(source)
        assert len(found) == 1
        crash(postgres)
    assert values(postgres.dsn) == (found if has_barrier else [])


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("has_barrier", [True, False])
def test_transactions_that_come_again_are_read(postgres, source, topic, monkeypatch, has_barrier):
    """Ids of transactions that rolled back, of which nothing reached the disk, are given to others after a crash."""
    if not has_barrier:
        monkeypatch.setattr(server_identity, "barrier", no_barrier)
    with Writer(postgres.dsn, topic, synchronous_commit="off") as writer:
        writer.roll_back(20)
        writer.commit()
        before, position = read_all(source)
        crash(postgres)
    source.close()
    with Writer(postgres.dsn, topic) as writer:
        writer.commit(30)
    source.open(position)
    after, _ = read_all(source)
    there = values(postgres.dsn)
    assert (set(there) <= {*before, *after}) is has_barrier
    assert len(there) == (31 if has_barrier else 30)


def test_what_the_log_has_on_disk_needs_no_barrier(postgres, topic, monkeypatch):
    """A writer who waits for the disk spares the reader that; one who does not, does not."""
    barriers, found = [], []
    barrier = server_identity.barrier
    monkeypatch.setattr(server_identity, "barrier", lambda connection: barriers.append(1) or barrier(connection))
    NativeOutbox(postgres.dsn, topic).close()
    source = SnapshotSource(postgres.dsn, Selection(table=OutboxTable.parse("outbox").identifier))
    source.open(None)
    barriers.clear()
    with Writer(postgres.dsn, topic) as writer:
        for number in range(20):
            writer.roll_back()
            writer.commit()
            rows, position = read_all(source)
            found += rows
            assert len(found) == number + 1
        assert len(barriers) <= 2  # the server itself may write to its log in between
        place = server_identity.lsn_number(position["server"]["lsn"])
    barriers.clear()
    freeze_wal_writer(postgres)
    with Writer(postgres.dsn, topic, synchronous_commit="off") as writer:
        writer.commit()
        rows, position = read_all(source)
        assert barriers == [1]
        assert server_identity.lsn_number(position["server"]["lsn"]) > place
        crash(postgres)
    source.close()
    assert values(postgres.dsn) == found + rows


@pytest.mark.parametrize("standby_names", ["", "s1"])
def test_a_standby_that_has_to_confirm_is_waited_for(postgres, topic, standby_names):
    """The flush to this server's own disk is not enough then."""
    NativeOutbox(postgres.dsn, topic).close()
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby_names}'")
        connection.execute("SELECT pg_reload_conf()")
        eventually(lambda: connection.execute("SHOW synchronous_standby_names").fetchone() == (standby_names,))
        connection.execute(INSERT, (topic, "k", "v"))
        statement = f"SELECT {server_identity.FLUSHED_UP_TO}"
        eventually(lambda: (connection.execute(statement).fetchone()[0] is not None) is not bool(standby_names))


@pytest.mark.parametrize("kind", SOURCES)
def test_a_look_that_finds_nothing_passes_nothing(postgres, source, topic):
    """It commits no barrier, so what it saw end may never have been."""
    with Writer(postgres.dsn, topic, synchronous_commit="off") as writer:
        writer.commit()
        _, position = read_all(source)
        writer.roll_back(20)
        assert source.read(100) is None
        crash(postgres)
    source.close()
    with Writer(postgres.dsn, topic) as writer:
        writer.commit(10)
    source.open(position)
    assert read_all(source)[0] == values(postgres.dsn)[1:]


# -- whole harvesters, killed servers


@pytest.fixture
def make_harvest(postgres, topic, bootstrap_servers, group_id):
    NativeOutbox(postgres.dsn, topic).close()
    made = []

    def make(delivery, dsn=""):
        config = harvest_config(
            dsn or postgres.dsn, bootstrap_servers, group_id, leadership="solo", delivery=delivery, source="snapshot"
        )
        made.append(Harvest(config))
        return made[-1]

    yield make
    for harvest in made:
        harvest.stop()


def delivered(servers, topic):
    return [record.value for record in read_topic(servers, topic, isolation="read_committed")]


class Hasty:
    """Threads that commit and roll back without waiting for the disk, until the server dies under them."""

    def __init__(self, dsn, topic, threads=3):
        self._dsn = dsn
        self._topic = topic
        self._threads = [threading.Thread(target=self._write) for _ in range(threads)]

    def _write(self):
        try:
            with Writer(self._dsn, self._topic, synchronous_commit="off") as writer:
                while True:
                    writer.commit(3)
                    writer.roll_back(2)
        except psycopg.OperationalError:
            return

    def start(self):
        for thread in self._threads:
            thread.start()

    def join(self):
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize(
    ("delivery", "crashes"),
    [
        ("transactional", 3),
        pytest.param("barrier", 3, marks=long),
        pytest.param("pipelined", 3, marks=long),
        pytest.param("transactional", 12, marks=long),
        pytest.param("barrier", 12, marks=long),
    ],
)
def test_killed_under_writers_that_do_not_wait_for_the_disk(
    postgres, make_harvest, topic, bootstrap_servers, delivery, crashes
):
    with make_harvest(delivery) as harvest:
        for _ in range(crashes):
            before = harvest.delivered_records
            writers = Hasty(postgres.dsn, topic)
            writers.start()
            eventually(lambda before=before: harvest.delivered_records > before + 100, "busy")
            postgres.kill()
            writers.join()
            postgres.start()
        with Writer(postgres.dsn, topic) as writer:
            writer.commit(20)
        there = values(postgres.dsn)
        eventually(lambda: set(there) <= set(delivered(bootstrap_servers, topic)), "all is delivered")
        assert harvest.state is State.RUNNING
    found = delivered(bootstrap_servers, topic)
    assert set(found) == set(there)
    if delivery == "transactional":
        assert len(found) == len(there)


# -- failover


def test_a_connection_that_is_lost_while_the_server_is_compared_says_nothing_of_the_server(dsn, monkeypatch):
    """A halt would be permanent; this passes by itself."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = {**server_identity.place(connection).as_json(), "timeline": "000000FF"}
        monkeypatch.setattr(server_identity, "_FIRST_TIMELINE", "")  # so that the history is read
        monkeypatch.setattr(server_identity, "_HISTORY", "SELECT pg_terminate_backend(pg_backend_pid()), %s")
        with pytest.raises(DatabaseUnavailable):
            server_identity.check(connection, before, "default")


@pytest.fixture
def standby(postgres, tmp_path, make_harvest):
    made = standby_of(postgres, tmp_path / "standby")
    yield made
    made.kill()


def halted(harvest):
    """Return what a harvester died of."""
    with pytest.raises(HarvestError) as raised:
        eventually(lambda: harvest.await_stopped(0.1), "it halts")
    return raised.value


def fall_behind(postgres, standby, harvest, topic):
    """Have the primary and its harvester go on while the standby hears nothing; then have the primary die and the
    standby take over, with other records under the same ids."""
    with Writer(postgres.dsn, topic) as writer:
        writer.commit(20, "both")
        eventually(lambda: harvest.delivered_records == 20, "the first are delivered")
        eventually(
            lambda: (
                harvest._terms.loops[0]._checkpoints.last.number > 1 and harvest._terms.loops[0]._checkpoints.is_saved
            ),
            "its checkpoint is saved",
        )
        await_replicated(postgres, standby)
        standby.stop()
        writer.commit(10, "lost")
        eventually(lambda: harvest.delivered_records == 30, "the others are delivered")
        postgres.kill()
    standby.start()
    standby.promote()
    with Writer(standby.dsn, topic) as writer:
        writer.commit(25, "new")
    assert [value.split()[0] for value in values(standby.dsn)] == ["both"] * 20 + ["new"] * 25


@pytest.mark.parametrize("delivery", ["transactional", pytest.param("barrier", marks=long)])
def test_a_standby_that_lacks_what_was_harvested(postgres, standby, make_harvest, topic, bootstrap_servers, delivery):
    dsn = either(postgres, standby)
    harvest = make_harvest(delivery, dsn)
    harvest.start()
    fall_behind(postgres, standby, harvest, topic)
    if delivery == "barrier":  # the checkpoint that counts is in Postgres, and is as old as the rest of the new primary
        eventually(lambda: set(values(standby.dsn)) <= set(delivered(bootstrap_servers, topic)), "all is delivered")
        return
    error = halted(harvest)
    assert isinstance(error, ServerRegressed)
    assert "harvest subscriptions rewind default --to mirror" in error.next_step
    assert "forked at" in error.evidence or "row was written" in error.evidence
    # Started again, it is refused by the same evidence, which the new primary's row remembers.
    with pytest.raises(ServerRegressed, match="--to mirror"):
        make_harvest(delivery, dsn).start()


@pytest.mark.parametrize(
    ("role", "goes_on"), [("superuser", True), ("may_read", True), pytest.param("may_not", False, marks=long)]
)
def test_a_standby_that_has_everything(postgres, standby, make_harvest, topic, bootstrap_servers, role, goes_on):
    login = {}
    if role != "superuser":
        login = {"user": "harvester", "password": "harvester"}
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute("CREATE ROLE harvester LOGIN PASSWORD 'harvester'")
            connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO harvester")
            connection.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO harvester")
            if role == "may_read":
                connection.execute("GRANT EXECUTE ON FUNCTION pg_read_file(text) TO harvester")
    harvest = make_harvest("transactional", either(postgres, standby, **login))
    harvest.start()
    with Writer(postgres.dsn, topic) as writer:
        writer.commit(20)
    eventually(lambda: harvest.delivered_records == 20, "the first are delivered")
    await_replicated(postgres, standby)
    postgres.kill()
    standby.promote()
    with Writer(standby.dsn, topic) as writer:
        writer.commit(20)
    if not goes_on:
        error = halted(harvest)
        assert isinstance(error, ServerRegressed)
        assert "pg_read_file" in error.next_step
        return
    there = values(standby.dsn)
    eventually(lambda: len(delivered(bootstrap_servers, topic)) >= 40, "all is delivered")
    assert sorted(delivered(bootstrap_servers, topic)) == sorted(there)
    harvest.stop()
    harvest.await_stopped(60)


def test_a_standby_that_lacks_purges(postgres, standby, topic, caplog):
    """A mark source has nothing but the table to go by: records come again, and the log says why."""
    source = MarkSource(either(postgres, standby), OutboxTable.parse("outbox").identifier)
    with Writer(postgres.dsn, topic) as writer:
        writer.commit(10)
    await_replicated(postgres, standby)
    standby.stop()
    source.open(uuid.uuid4())
    first = list(source.fetch(100).rows)
    assert source.fetch(100, [row[0] for row in first]).rows == []
    crash(postgres)
    source.close()
    source.open(uuid.uuid4())
    assert "purges_may_be_undone" not in caplog.text, "an ordinary restart undoes nothing"
    postgres.kill()
    standby.start()
    standby.promote()
    source.close()
    source.open(uuid.uuid4())
    assert list(source.fetch(100).rows) == first
    assert "purges_may_be_undone" in caplog.text
    source.close()
