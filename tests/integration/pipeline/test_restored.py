"""A pipeline at a server that was put back to an earlier time, whichever way, or that only crashed."""

import json
import shutil
import subprocess
from contextlib import closing

import psycopg
import pytest
import yaml
from support.pipeline_ends import PostgresSource, collect
from support.pipelines import Running
from support.restoring import WAYS
from support.waiting import eventually

from harvest_lib.errors import HarvestError, PositionLost
from harvest_lib.local_stack.postgres import PostgresServer
from harvest_lib.pipeline.declaration import load
from harvest_lib.source.server_identity import lsn_number

pytestmark = pytest.mark.full


@pytest.fixture
def server(tmp_path):
    made = PostgresServer(tmp_path / "server")
    made.start()
    with psycopg.connect(made.dsn, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_level = logical")
    made.stop()
    made.start()
    yield made
    made.stop()


def read(source, last, *ids):
    """Read on until these have come, let the server forget them, and return what the log has."""
    with closing(source.reader()) as reader:
        found, last = collect(reader, last, until=lambda found, _: {each.data["id"] for each in found} >= set(ids))
        assert [each.data["id"] for each in found] == list(ids)
        reader.kept(last)
    return last


def write(server, *ids, beyond="0/0"):
    """Insert rows, and have the log grow beyond a place."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.cursor().executemany("INSERT INTO t VALUES (%s, 'x')", [(each,) for each in ids])
        end = "0/0"
        while lsn_number(end) <= lsn_number(beyond):
            connection.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 100000))")
            ((end,),) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()


@pytest.mark.parametrize("written", [(), (12, 13)])
def test_a_volume_that_was_put_back_is_refused_however_long_its_log_has_grown(server, unique, tmp_path, written):
    source = PostgresSource(server.dsn, unique)
    write(server, 1)
    last = read(source, {}, 1)
    source.connection.close()
    server.stop()
    subprocess.run(["cp", "-a", server.folder, tmp_path / "volume"], check=True)
    server.start()
    write(server, 2, 3)
    last = read(source, last, 2, 3)
    server.stop()
    shutil.rmtree(server.folder)
    subprocess.run(["cp", "-a", tmp_path / "volume", server.folder], check=True)
    server.start()
    write(server, *written, beyond=last[f"postgres/{source.slot}"].data["lsn"])
    write(server, 22)
    for _ in range(2):  # the evidence is still there at the next start
        with closing(source.reader()) as reader:
            reader.kept(last)  # as a pipeline does before it reads
            with pytest.raises(PositionLost, match="restored to an earlier time") as refused:
                collect(reader, last, until=lambda found, _: bool(found))
            assert refused.value.wears_off


def test_a_server_that_crashed_is_gone_on_with_and_sends_nothing_twice(server, unique):
    source = PostgresSource(server.dsn, unique)
    write(server, 1)
    last = read(source, {}, 1)
    for number in (2, 4):
        write(server, number)
        last = read(source, last, number)
        source.connection.close()
        server.kill()
        server.start()
        write(server, number + 1)
        last = read(source, last, number + 1)


# -- whole pipelines, in each way that a server comes back with less


class Restorable:
    """A pipeline from a server that is put back into a file, started again and again as its service does."""

    def __init__(self, server, way, folder):
        self.server, self.way, self.folder = server, WAYS[way](server, folder / "saved"), folder
        (folder / "saved").mkdir()
        for each in (folder, folder / "saved"):
            each.chmod(0o755)
        self.number = 0
        with self.connected() as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")

    def connected(self):
        return psycopg.connect(self.server.dsn, autocommit=True)

    def write(self, count):
        """Commit so many transactions of a row each, whose contents do not come again; return these."""
        notes = [f"note {self.number + each}" for each in range(count)]
        with self.connected() as connection:
            for note in notes:
                connection.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1, %s FROM t", (note,))
        self.number += count
        return notes

    def log(self):
        with self.connected() as connection:
            return lsn_number(connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()[0])

    def restore(self):
        """Put the server back, and have it write what logical decoding needs, as its operator would."""
        self.way.restore()
        with self.connected() as connection:
            if connection.execute("SHOW wal_level").fetchone() == ("logical",):
                return
            connection.execute("ALTER SYSTEM SET wal_level = logical")
        self.server.stop()
        self.server.start()

    def outgrow(self, log):
        """Have the log pass a place, with transactions enough to pass those of before as well."""
        with self.connected() as connection:
            for _ in range(300):
                connection.execute("SELECT pg_current_xact_id()")
            while lsn_number(connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()[0]) <= log:
                connection.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 100000))")

    def start(self, name="pipeline"):
        file = self.folder / f"{name}.yaml"
        reader = {"adaptor": "postgres", "data_source": self.server.dsn, "slot": "s", "tables": ["t"]}
        writers = {"w": {"adaptor": "file", "path": str(self.folder / f"{name}.jsonl")}}
        settings = {"folder": str(self.folder / name), "flush_offsets": "20ms", "reader": reader, "writers": writers}
        file.write_text(yaml.safe_dump(settings))
        return Running(load(file))

    def arrived(self, name="pipeline"):
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return {json.loads(line)["data"].get("note") for line in lines}

    def confirmed(self):
        """Return where the slot stands."""
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 's'"
        with self.connected() as connection:
            return lsn_number(connection.execute(query).fetchone()[0])


@pytest.fixture
def restorable(server, way, tmp_path):
    return Restorable(server, way, tmp_path)


def ends(running, restorable, written, name="pipeline"):
    """Wait until a pipeline has failed or delivered all; return its error, None if all is there."""
    eventually(lambda: running.failure is not None or set(written) <= restorable.arrived(name), "it fails or delivers")
    running.stop()
    return running.failure


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("goes_on", [True, False])
def test_nothing_is_skipped_without_a_stop_that_names_it(restorable, goes_on):
    """It runs meanwhile, or starts once the log and the transactions have long passed its position."""
    both = restorable.write(20)
    running = restorable.start()
    eventually(lambda: set(both) <= restorable.arrived(), "the first are delivered")
    restorable.way.save()
    lost = restorable.write(30)
    eventually(lambda: set(lost) <= restorable.arrived(), "the others are delivered")
    log = restorable.log()
    if not goes_on:
        running.stop()
    restorable.restore()
    written = restorable.write(25)
    restorable.outgrow(log)
    written += restorable.write(20)
    if goes_on:
        ends(running, restorable, written)
    for _ in range(3):
        failure = ends(restorable.start(), restorable, written)
        if failure is None:
            assert set(written) <= restorable.arrived()
            continue
        assert isinstance(failure, HarvestError)
        assert failure.evidence
        assert "copied again" in failure.next_step, str(failure)
        written += restorable.write(5)
    if failure is None:
        return
    # What the error says.
    with restorable.connected() as connection:
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    again = restorable.start("again")
    eventually(lambda: again.failure is not None or set(written) <= restorable.arrived("again"), "all is copied")
    again.stop()
    assert again.failure is None, str(again.failure)
