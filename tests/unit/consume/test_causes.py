"""Errors of a function by their cause: an error that passes is put down to no message, however it is wrapped."""

import errno
import socket
import sqlite3
from contextlib import closing

import psycopg
import pytest

from harvest_lib.consume.causes import follows_what_passes, passes

pytestmark = pytest.mark.quick


class Wrapped(Exception):
    """As SQLAlchemy's DBAPIError."""

    def __init__(self, orig):
        super().__init__(str(orig))
        self.orig = orig


def chained(error, *, cause):
    try:
        try:
            raise error  # noqa: TRY301 - it is to have a traceback
        except BaseException as first:
            if cause:
                raise ValueError("the order is no good") from first
            raise ValueError("the order is no good")  # noqa: B904 - the context is the subject
    except ValueError as second:
        return second


def of_a_library(error):
    found = OfALibrary("no")
    found.__context__ = error
    return found


def of_sqlite(code):
    error = sqlite3.OperationalError("whatever it says")
    error.sqlite_errorcode = code
    return error


class PoolTimeout(psycopg.OperationalError):
    """As that of psycopg_pool."""


PoolTimeout.__module__ = "psycopg_pool.errors"


class OfALibrary(Exception):
    """As requests' ConnectionError, which is raised where the cause is handled."""


OfALibrary.__module__ = "requests.exceptions"

PASSING = [
    psycopg.errors.LockNotAvailable("locked"),
    psycopg.errors.DeadlockDetected("deadlock"),
    psycopg.errors.DiskFull("full"),
    psycopg.errors.TooManyConnections("too many"),
    psycopg.OperationalError("the connection was lost"),
    of_sqlite(sqlite3.SQLITE_FULL),
    of_sqlite(sqlite3.SQLITE_BUSY | 2 << 8),
    of_sqlite(sqlite3.SQLITE_LOCKED),
    of_sqlite(sqlite3.SQLITE_READONLY | 4 << 8),
    of_sqlite(sqlite3.SQLITE_IOERR | 13 << 8),
    OSError(errno.ENOSPC, "no space"),
    OSError(errno.EMFILE, "too many open files"),
    ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
    OSError(errno.EHOSTUNREACH, "no route to host"),
    OSError(errno.ENETUNREACH, "network is unreachable"),
    OSError(errno.ETIMEDOUT, "timed out"),
    TimeoutError("timed out"),
    socket.gaierror(socket.EAI_AGAIN, "temporary failure in name resolution"),
    PoolTimeout("couldn't get a connection after 30.00 sec"),
    psycopg.InterfaceError("the connection is closed"),
    psycopg.errors.InvalidSqlStatementName('prepared statement "_pg3_0" does not exist'),
    psycopg.errors.ObjectInUse("in use"),
]
LASTING = [
    psycopg.errors.UniqueViolation("twice"),
    psycopg.errors.QueryCanceled("statement timeout"),
    psycopg.errors.UndefinedTable("no table"),
    psycopg.InterfaceError("the cursor is closed"),
    psycopg.errors.ObjectNotInPrerequisiteState("currval is not yet defined"),
    psycopg.errors.InvalidSqlStatementName('prepared statement "mine" does not exist'),
    of_sqlite(sqlite3.SQLITE_CONSTRAINT),
    of_sqlite(sqlite3.SQLITE_TOOBIG),
    sqlite3.ProgrammingError("no code"),
    FileNotFoundError(errno.ENOENT, "no file"),
    ValueError("no"),
    SystemExit(1),
]
HOW = {
    "itself": lambda error: error,
    "cause": lambda error: chained(error, cause=True),
    "context of a library's": of_a_library,
    "orig": Wrapped,
    "orig of a cause": lambda error: chained(Wrapped(error), cause=True),
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_what_passes_by_itself(error, how):
    assert passes(how(error))


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_what_does_not(error, how):
    assert not passes(how(error))


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_an_application_s_error_is_its_own_where_it_names_no_cause(error):
    assert not passes(chained(error, cause=False))


def test_a_real_full_database_and_a_real_lock(tmp_path):
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as ours:
        ours.execute("CREATE TABLE t (v BLOB)")
        ours.execute("PRAGMA max_page_count = 4")
        with pytest.raises(sqlite3.OperationalError) as full:
            ours.execute("INSERT INTO t VALUES (zeroblob(1000000))")
        assert passes(full.value)
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
            ours.execute("BEGIN IMMEDIATE")
            with pytest.raises(sqlite3.OperationalError) as locked:
                other.execute("INSERT INTO t VALUES (1)")
            assert passes(locked.value)


@pytest.mark.parametrize(
    ("errors", "is_passing"),
    [
        ([psycopg.errors.DeadlockDetected(), ConnectionResetError()], True),
        ([psycopg.errors.DeadlockDetected(), ValueError()], False),
        ([ExceptionGroup("inner", [TimeoutError()])], True),
    ],
)
def test_a_group_passes_if_each_of_its_errors_does(errors, is_passing):
    group = ExceptionGroup("tasks", errors)
    assert passes(group) == is_passing
    assert passes(chained(group, cause=True)) == is_passing


@pytest.mark.parametrize(
    ("error", "follows"),
    [(psycopg.errors.DeadlockDetected(), True), (psycopg.errors.UniqueViolation(), False), (ConnectionError(), False)],
)
def test_an_error_may_follow_what_passes_in_postgres(error, follows):
    found = chained(error, cause=False)
    assert not passes(found)
    assert follows_what_passes(found) == follows
    assert not follows_what_passes(error)
