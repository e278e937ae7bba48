"""Classifies errors that came from Postgres: whether a retry may succeed, and whether the server answered at all.

An application may wrap the error of Postgres, so the whole chain of an error is searched: `__cause__`, `orig` (of
SQLAlchemy), and an unsuppressed `__context__` of a library's error. The SQLSTATE decides, because the text may be in
any language. Errors of psycopg, psycopg2 and asyncpg are recognized.

| class of SQLSTATE | passes |
| --- | --- |
| 08 connection, 26 lost prepared statement, 40 conflict or deadlock, 53 resources, 58 system | yes |
| 55 | yes: a lock, an object in use, a server in recovery; no: a table without replica identity |
| 57 | yes: cancelled (`statement_timeout`), shutdown, crash, starting; no: the database was dropped |
| 25006 read-only, 25P03, 25P04 a timeout ended the session, 72000 snapshot too old | yes |
| 0A000 of a cached plan | yes |
| none, of a lost or refused connection | yes |
| all others: the statement, its values, privileges | no |
"""

import re
from collections.abc import Iterator

_PASSING_CLASSES = frozenset({"08", "26", "40", "53", "55", "57", "58"})
_PASSING = frozenset({"25006", "25P03", "25P04", "72000"})
_LASTING = frozenset({"40002", "55P02", "55P04", "57P04"})
"""Permanent errors in passing classes: an integrity constraint, a fixed parameter, a new enum value, a dropped
database."""
_STALE_PLAN = "RevalidateCachedQuery"
"""The function of Postgres that detects a stale prepared statement."""
_NO_IDENTITY = "CheckCmdReplicaIdentity"
"""The function of Postgres that refuses changes of a published table without a replica identity."""
_FAILED_BEFORE = "25P02"
"""SQLSTATE of a statement in a transaction that an earlier statement aborted. The earlier error is the cause."""
_CONNECTION = "08"
_NO_SESSION = re.compile(r"failed: \S+ ?:  ")
"""Pattern in libpq's text if the server refused to open a session: before the server's message are its severity, in the
server's language, and two spaces."""
_CONNECTION_ERRORS = frozenset({"OperationalError", "InterfaceError"})
_DRIVERS = frozenset({"psycopg", "psycopg2", "psycopg_pool"})
"""Drivers with connection errors that have no SQLSTATE. Connection errors of asyncpg have an SQLSTATE."""
_CONNECTION_IS_GONE = re.compile("connection .*(closed|lost|broken)")
"""Text of an InterfaceError for a lost connection, always in English. Other texts mean misuse of a cursor or a type."""
_TELL_THEIR_CAUSE = _DRIVERS | {
    *("asyncpg", "sqlite3", "sqlalchemy", "django"),
    *("urllib", "urllib3", "requests", "httpx", "redis"),
}
"""Libraries whose errors have their cause in `__context__`. The `__context__` of an application's error may be
unrelated."""

_WORDS = {
    "25006": "takes no changes: the session is read-only, or it is a standby",
    "40001": "could not serialize a transaction with others",
    "40P01": "ended a deadlock",
    "53100": "has no room on its disk",
    "53200": "has no memory left",
    "53300": "has too many connections",
    "55006": "reports that an object is in use",
    "55P03": "did not get a lock in time",
    "57014": "cancelled a statement",
    "57P01": "ended the session",
    "57P02": "ended the session, as another process crashed",
    "57P03": "takes no connections now",
}

_STEPS = {
    "25006": "name the primary in `dataSource`, or all servers: host=a,b; or lift `default_transaction_read_only`",
    "40001": "it is tried again; if it does not pass, check for long transactions on the same rows",
    "40P01": "it is tried again; if it does not pass, the server's log names the other process",
    "53100": "make room on the server's disk; it is tried again",
    "53200": "give the server memory; it is tried again",
    "53300": "raise `max_connections`, or the role's or database's CONNECTION LIMIT; it is tried again",
    "55P03": "find the lock holder: SELECT pid, pg_blocking_pids(pid), query FROM pg_stat_activity; or raise the "
    "role's `lock_timeout`",
    "57014": "find the lock holder: SELECT pid, pg_blocking_pids(pid), query FROM pg_stat_activity; or raise the "
    "role's `statement_timeout`",
}
_OTHER_STEP = "it is tried again; if it does not pass, see the server's log"


def sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of the nearest error of Postgres in the chain of `error`. Return an empty text if the chain
    has no such error, or if the server did not answer."""
    return _state(_cause(error))


def answered(error: BaseException) -> bool:
    """Return True if the server answered with a reason, even if it refused to open a session. Return False if a
    connection was lost, or an attempt to connect timed out."""
    cause = _cause(error)
    state = _state(cause)
    return state[:2] != _CONNECTION if state else opens_no_session(str(cause or ""))


def opens_no_session(text: str) -> bool:
    """Return True if libpq's text, for an error without SQLSTATE, shows that the server refused to open a session."""
    return _NO_SESSION.search(text) is not None


def passes(error: BaseException) -> bool:
    """Return True if an error of Postgres is temporary, so that a retry may succeed. False for errors of the statement
    or its values, and for errors that did not come from Postgres."""
    cause = _cause(error)
    if cause is None:
        return False
    state = _state(cause)
    if not state:
        return True  # the connection was lost
    function = str(getattr(getattr(cause, "diag", None), "source_function", None) or "")
    if state == "0A000":
        return function == _STALE_PLAN
    if state in _LASTING or function == _NO_IDENTITY:
        return False
    return state in _PASSING or state[:2] in _PASSING_CLASSES


def predicate(state: str) -> str:
    """Return a text for the SQLSTATE of a temporary error. It continues a sentence that begins with "Postgres"."""
    return _WORDS.get(state, "answered with an error that may pass")


def next_step(state: str) -> str:
    """Return the operator's next step for the SQLSTATE of a temporary error."""
    return _STEPS.get(state, _OTHER_STEP)


def _cause(error: BaseException) -> BaseException | None:
    """Return the nearest error of Postgres in the chain of `error`. An error of an already aborted transaction is
    returned only if the chain has no other error of Postgres."""
    after = None
    for each in chain(error):
        state = _state(each)
        if state == _FAILED_BEFORE:
            after = after or each
        elif state or _is_lost_connection(each):
            return each
    return after


def _state(error: BaseException | None) -> str:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) else ""


def _is_lost_connection(error: BaseException) -> bool:
    names = {each.__name__ for each in type(error).__mro__}
    if _library(error) not in _DRIVERS or names.isdisjoint(_CONNECTION_ERRORS):
        return False
    return "OperationalError" in names or _CONNECTION_IS_GONE.search(str(error)) is not None


def _library(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all its causes, the nearest first. Each error is yielded once."""
    left: list[BaseException | None] = [error]
    known: set[int] = set()
    while left:
        each = left.pop(0)
        if not isinstance(each, BaseException) or id(each) in known:
            continue
        known.add(id(each))
        yield each
        left += [each.__cause__, getattr(each, "orig", None)]
        if not each.__suppress_context__ and _library(each) in _TELL_THEIR_CAUSE:
            left.append(each.__context__)
