"""Stacks of a session; Postgres servers that a test may kill, and standbys of them that it may promote."""

import signal
import time
from contextlib import contextmanager

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.waiting import eventually

from harvest_lib.errors import StackError
from harvest_lib.local_stack import kafka, postgres
from harvest_lib.local_stack.postgres import PostgresServer

# Below the limit of fixtures, so that a server that does not come up is said to be that.
kafka._READY_SECONDS = postgres._READY_SECONDS = postgres._MAKE_SECONDS = 120
_SOON_SECONDS = 30


def freeze_wal_writer(server):
    """Have nothing flushed but what a commit waits for, until the server is killed."""
    for process in psutil.Process(server.pid).children():
        if any("walwriter" in word for word in process.cmdline()):
            process.send_signal(signal.SIGSTOP)
            return
    raise AssertionError("there is no walwriter")


def crash(server):
    """Kill the server, all its processes, and start it again."""
    server.kill()
    server.start()


def standby_of(primary, folder):
    """Make an asynchronous standby of a server that runs, and start it."""
    standby = PostgresServer(folder, durable=False)
    standby.copy(primary, "standby")
    standby.start()
    return standby


def await_replicated(primary, standby):
    """Wait until the standby has all that is in the primary's log."""
    with psycopg.connect(primary.dsn) as ours, psycopg.connect(standby.dsn, autocommit=True) as theirs:
        (lsn,) = ours.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        has_all = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        eventually(lambda: theirs.execute(has_all, (lsn,)).fetchone()[0], "replicated")


def either(*servers, **parameters):
    """Return a connection string that leads to whichever of the servers takes writes."""
    known = [conninfo_to_dict(server.dsn) for server in servers]
    hosts = {name: ",".join(str(each[name]) for each in known) for name in ("host", "port")}
    return make_conninfo(**{**known[0], **hosts, "target_session_attrs": "read-write", **parameters})


@contextmanager
def own_cluster(cluster):
    """Start a cluster for one test, and kill it at the end."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


@contextmanager
def started(stack):
    """Start a stack, once more if that fails soon, and stop it afterwards: hundreds of tests would fail with it."""
    began = time.monotonic()
    try:
        stack.start()
    except StackError:
        if time.monotonic() - began > _SOON_SECONDS:
            raise  # or pytest would end the worker, and nobody would read why
        stack.start()
    try:
        yield stack
    finally:
        stack.stop()
