"""Decides whether an error of a user's function passes by itself. No message is to blame for such an error.

The whole chain of an error is searched, because an application, or a library such as SQLAlchemy, may wrap the cause:

| cause | errors that pass |
| --- | --- |
| Postgres | by SQLSTATE, see `harvest_lib.postgres.postgres_causes`; not wrong states and slow statements |
| SQLite | by result code: a full disk; a database that is locked, read-only, damaged or cannot be opened or read |
| the machine | a full or read-only disk, an error of a disk, no file descriptor or memory left |
| the network | a connection that was refused or broke, a host that is not reached or found, a timeout |
| a group of errors | if each error of the group passes |
| all else | none |
"""

import errno
import re
import socket
import sqlite3

from harvest_lib.postgres import postgres_causes

_TOOK_TOO_LONG = "57014"
"""A statement was cancelled. The statement itself may be too slow: a wait for a lock would end sooner, with another
SQLSTATE (`PostgresStore`)."""
_WRONG_STATE = "55000"
"""An object is not in the required state, such as for `currval` before `nextval`."""
_NO_STATEMENT = "26000"
_OF_A_DRIVER = re.compile("_pg3_|__asyncpg_")
"""Name prefixes of statements that a driver prepared. A pooler or another server does not know such statements. All
other names come from the user's own EXECUTE."""
_OF_SQLITE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
_PRIMARY = 0xFF
"""Mask for the primary part of SQLite's extended result codes."""
_OF_THE_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EROFS}
)
_OF_THE_NETWORK = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ETIMEDOUT, errno.EADDRNOTAVAIL}
)


def passes(error: BaseException) -> bool:
    """Return True if an error passes by itself, so that the same messages may be tried again."""
    state = postgres_causes.sqlstate(error)
    if state in (_TOOK_TOO_LONG, _WRONG_STATE):
        return False
    if state == _NO_STATEMENT and not any(_OF_A_DRIVER.search(str(each)) for each in postgres_causes.chain(error)):
        return False
    if state:
        return postgres_causes.passes(error)
    return postgres_causes.passes(error) or any(map(_is_passing, postgres_causes.chain(error)))


def follows_what_passes(error: BaseException) -> bool:
    """Return True if `error` was raised while an error of Postgres that passes was handled. The caller has to check
    that the transaction has failed too: only then is the error of Postgres the cause."""
    handled = error.__context__
    while handled is not None:
        if postgres_causes.sqlstate(handled) and passes(handled):
            return True
        handled = handled.__context__
    return False


def _is_passing(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(passes, error.exceptions))
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return code is not None and code & _PRIMARY in _OF_SQLITE
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    return isinstance(error, OSError) and error.errno in _OF_THE_MACHINE | _OF_THE_NETWORK
