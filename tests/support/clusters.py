"""Servers of Postgres of a test's own, and what moves data between them."""

import os
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harvest_lib.local_stack.postgres import PostgresServer, _binary, _environment, _unprivileged
from harvest_lib.local_stack.process import through_child


@contextmanager
def clusters(folder: Path, *versions: str):
    """Yield a running server for each version."""
    with ExitStack() as closing:
        made = []
        for number, version in enumerate(versions):
            made.append(PostgresServer(folder / str(number), version=version, durable=False))
            made[-1].start()
            closing.callback(made[-1].stop)
        yield made


def create(server: PostgresServer, database: str) -> str:
    """Make an empty database and return its connection string."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{database}"')
    return make_conninfo(server.dsn, dbname=database)


def burn(dsn: str, transactions: int):
    """Have a server give out ids of transactions."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(transactions):
            connection.execute("SELECT pg_current_xact_id()")


def dump_and_restore(source: str, target: str, version: str, *, how: str = "custom"):
    """Copy a database as operators do: `custom` by pg_dump and pg_restore, `inserts` by one statement for each row."""
    form = ["--format=custom"] if how == "custom" else ["--inserts", "--rows-per-insert=1"]
    dumped = _client("pg_dump", version, source, [*form, "--no-owner", "--no-privileges"])
    if how == "custom":
        _client("pg_restore", version, target, ["--no-owner", "--no-privileges", "--exit-on-error"], given=dumped)
    else:
        _client("psql", version, target, ["-q", "-v", "ON_ERROR_STOP=1"], given=dumped)


def _client(name, version, dsn, arguments, given=None):
    known = conninfo_to_dict(dsn)
    environment = {**_environment(), "PGPASSWORD": str(known["password"]), "PGSSLMODE": "disable"}
    where = [f"--{each}={known[key]}" for each, key in (("host", "host"), ("port", "port"), ("username", "user"))]
    command = [_binary(name, version), *where, f"--dbname={known['dbname']}", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, env=environment, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def upgrade(old: PostgresServer, new: PostgresServer, folder: Path):
    """Upgrade the data of `old` into `new` by pg_upgrade; both are stopped before, and `new` runs afterwards."""
    old.stop()
    new.stop()
    user = _unprivileged()
    folder.mkdir()
    if user:
        os.chown(folder, user.uid, user.gid)
    for each in (old, new):
        shutil.copy(each._data / "pg_hba.conf", each._data / "pg_hba.before")
        (each._data / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 trust\n")

    def run(*command):
        done = subprocess.run(
            through_child(list(command), user=user, paths=[old._data, new._data, folder]),
            capture_output=True,
            text=True,
            env=_environment(),
            cwd=folder,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run(_binary("pg_checksums", old.version), "--enable", "-D", old._data)  # as 18 has them
    binaries = (_binary("postgres", each.version).parent for each in (old, new))
    flags = ("-b", "-B", "-d", "-D")
    paths = (*binaries, old._data, new._data)
    arguments = [part for pair in zip(flags, paths, strict=True) for part in pair]
    run(_binary("pg_upgrade", new.version), *arguments, "-U", "postgres", "-s", folder, "--copy")
    for each in (old, new):
        shutil.move(each._data / "pg_hba.before", each._data / "pg_hba.conf")
    new._password_file.write_text(old._password_file.read_text())
    new.start()
