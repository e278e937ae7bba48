"""Faults of Postgres, and transactions that stay open."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psycopg

from harvest_lib.local_stack.postgres import PostgresServer
from infra.chaos.faults.fault import Fault, Injection
from infra.chaos.system import System, SystemMode
from infra.chaos.writing import SLOW_KEYS, Writing

_KILL_SESSIONS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def _server(do: Callable[[PostgresServer], None], undo: Callable[[PostgresServer], None]) -> Injection:
    @contextmanager
    def inject(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
        do(system.postgres)
        try:
            yield
        finally:
            undo(system.postgres)

    return inject


@contextmanager
def _backends_killed(system: System, _draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
    with psycopg.connect(system.dsn, autocommit=True) as connection:
        connection.execute(_KILL_SESSIONS)
    yield


@contextmanager
def _writer_left_open(system: System, draw: random.Random, write: Callable[[], Writing]) -> Iterator[None]:
    """A transaction writes a record, stays idle during the fault, and commits at its end."""
    writing = write()
    with psycopg.connect(system.dsn) as connection:
        writing.write(connection, [f"slow-{draw.randint(1, SLOW_KEYS)}"])
        try:
            yield
        finally:
            writing.begin_end()
            connection.commit()
            writing.end("ok")


@contextmanager
def _prepared_left_open(system: System, draw: random.Random, write: Callable[[], Writing]) -> Iterator[None]:
    """A transaction writes a record and is prepared. It is committed at the end of the fault."""
    writing = write()
    with psycopg.connect(system.dsn, autocommit=True) as connection:
        connection.execute("BEGIN")
        writing.write(connection, [f"slow-{draw.randint(1, SLOW_KEYS)}"])
        connection.execute("PREPARE TRANSACTION 'chaos'")
        try:
            yield
        finally:
            writing.begin_end()
            connection.execute("COMMIT PREPARED 'chaos'")
            writing.end("ok")


def _waits(mode: SystemMode) -> bool:
    return mode.source == "transaction_id"


def _goes_on(mode: SystemMode) -> bool:
    return not _waits(mode)


_PASSED = "no reader waits for it, and its records are not lost"
_WAITED_FOR = "all wait for it, and nothing is lost"

FAULTS: Mapping[str, Fault] = {
    "postgres-killed": Fault(
        promise="committed records stay", inject=_server(PostgresServer.kill, PostgresServer.start), seconds=(1, 4)
    ),
    "postgres-frozen": Fault(
        promise="it waits, and continues", inject=_server(PostgresServer.suspend, PostgresServer.resume), seconds=(1, 6)
    ),
    "sessions-killed": Fault(promise="nothing is lost", inject=_backends_killed, seconds=(0.5, 1)),
    "writer-left-open": Fault(promise=_PASSED, inject=_writer_left_open, fits=_goes_on),
    "prepared-left-open": Fault(promise=_PASSED, inject=_prepared_left_open, fits=_goes_on),
    "writer-waited-for": Fault(promise=_WAITED_FOR, inject=_writer_left_open, fits=_waits),
    "prepared-waited-for": Fault(promise=_WAITED_FOR, inject=_prepared_left_open, fits=_waits),
}
