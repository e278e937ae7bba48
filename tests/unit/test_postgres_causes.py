"""An error of Postgres is judged by its SQLSTATE, however it is wrapped, and what the server answered is said."""

import psycopg
import pytest
from psycopg import errors as pg

from harvest_lib.errors import DatabaseError, DatabaseUnavailable
from harvest_lib.postgres.postgres_causes import answered, passes, sqlstate
from harvest_lib.postgres.translation import translate

pytestmark = pytest.mark.quick

PASSING = [
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.QueryCanceled,
    pg.LockNotAvailable,
    pg.ObjectInUse,
    pg.DeadlockDetected,
    pg.SerializationFailure,
    pg.DiskFull,
    pg.OutOfMemory,
    pg.TooManyConnections,
    pg.ReadOnlySqlTransaction,
    pg.IdleInTransactionSessionTimeout,
    pg.IoError,
    pg.SnapshotTooOld,
]
LASTING = [
    pg.UniqueViolation,
    pg.StringDataRightTruncation,
    pg.InvalidTextRepresentation,
    pg.InsufficientPrivilege,
    pg.UndefinedTable,
    pg.FeatureNotSupported,
    pg.DatabaseDropped,
    pg.InternalError_,
    pg.ProgramLimitExceeded,
]


class Wrapped(Exception):
    """An application's own."""


class OfALibrary(Exception):
    """As those of SQLAlchemy."""


OfALibrary.__module__ = "sqlalchemy.exc"


class Orig(Exception):
    """As SQLAlchemy wraps: it names the error, and need not be raised from it."""

    def __init__(self, orig):
        super().__init__("wrapped")
        self.orig = orig


def by_cause(error):
    found = Wrapped()
    found.__cause__ = error
    return found


def by_context(error):
    return _after(OfALibrary(), error)


@pytest.mark.parametrize("wrap", [lambda error: error, by_cause, by_context, Orig, lambda error: by_cause(Orig(error))])
def test_the_sqlstate_decides_however_an_error_is_wrapped(wrap):
    for kind in PASSING:
        assert passes(wrap(kind("no words"))), kind
    for kind in LASTING:
        assert not passes(wrap(kind("no words"))), kind
    assert sqlstate(wrap(pg.DiskFull())) == "53100"


def test_an_error_that_hides_another_on_purpose_stands_for_itself():
    error = by_context(pg.LockNotAvailable())
    error.__suppress_context__ = True
    assert not passes(error)


def test_a_transaction_that_had_failed_has_the_cause_of_its_failure():
    assert passes(_after(pg.InFailedSqlTransaction(), pg.DeadlockDetected()))
    assert not passes(_after(pg.InFailedSqlTransaction(), pg.UniqueViolation()))
    assert not passes(pg.InFailedSqlTransaction())


def _after(error, before):
    error.__context__ = before
    return error


def test_a_lost_connection_passes_and_is_no_answer():
    for error in (psycopg.OperationalError("gone"), psycopg.InterfaceError("the connection is closed")):
        assert passes(by_cause(error))
        assert not answered(by_cause(error))
    assert not answered(pg.ConnectionFailure())
    assert answered(pg.QueryCanceled())
    for error in (ValueError("a bug"), ConnectionRefusedError("of another server")):
        assert not passes(error)


def test_an_error_in_a_circle_ends():
    error = Wrapped()
    error.__cause__ = other = Wrapped()
    other.__cause__ = error
    assert not passes(error)


@pytest.mark.parametrize("kind", PASSING)
def test_the_text_says_what_the_server_answered(kind):
    found = translate(kind("canceling statement due to statement timeout"))
    assert isinstance(found, DatabaseUnavailable)
    assert "does not answer" not in found.cause
    assert kind.sqlstate in found.evidence


def test_what_does_not_pass_is_no_absence():
    for kind in (pg.UniqueViolation, pg.DatabaseDropped, pg.ProgramLimitExceeded):
        found = translate(kind("no words"))
        assert isinstance(found, DatabaseError)
        assert not isinstance(found, DatabaseUnavailable)
