"""A pipeline's reader at a server that was put back to an earlier time, slot and all, or that only crashed."""

import shutil
import subprocess
from contextlib import closing

import psycopg
import pytest
from support.pipeline_ends import PostgresSource, collect

from harvest_lib.errors import PositionLost
from harvest_lib.local_stack.postgres import PostgresServer
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
            with pytest.raises(PositionLost, match="put back to an earlier time") as refused:
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
