"""Opens connections to Postgres.

Promises
- A connection that is opened here detects a dead server within about 15 s, even during a statement, unless its caller
  sets another `tcp_user_timeout`.
- `connect` raises errors of `harvest_lib.errors`, without the password.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from harvest_lib.conninfo import parameters_of
from harvest_lib.errors import DatabaseError, DatabaseUnavailable
from harvest_lib.postgres.sql_ascii import take_text_as_it_is
from harvest_lib.postgres.translation import TAKES_NO_CHANGES, evidence_of, translated
from harvest_lib.telemetry.counts import POSTGRES_CONNECTIONS

CONNECT_TIMEOUT_SECONDS = 5

_LIVENESS: dict[str, Any] = {
    # The keepalives detect a dead server while the client waits for an answer, tcp_user_timeout while it sends data.
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

WAITS_FOR_CLIENT = {"tcp_user_timeout": "0"}
"""Settings of a session whose client may read nothing for long: a reader that waits for its writers, a user's function.
Linux applies a `tcp_user_timeout` also to a window that stays zero, although the peer acknowledges it, and would end
the connection, again after each repetition. Keepalives detect a peer that is gone. If data was on the way to the peer,
detection takes as long as the kernel repeats segments, about 15 minutes."""

_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
_SESSION = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    # By the same settings the server detects a dead client. Without them, the transaction of a dead client would hold
    # its locks for two hours.
    **{f"tcp_{name.removeprefix('tcp_')}": str(value) for name, value in _LIVENESS.items()},
}
"""Settings of each session: durable commits, the format of values, and probes of the connection. They override settings
of the role and the database."""

_HAS_IDLE_SESSION_TIMEOUT = 140_000
LIFT_TIMEOUTS = """
SELECT set_config(name, '0', false) FROM pg_settings
WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')
"""
"""Statement that disables the timeouts of a session. It disables only timeouts that the server's version has, because
`transaction_timeout` exists only since Postgres 17."""
_READ_ONLY_BY = """
SELECT source, CASE source
  WHEN 'user' THEN format('ALTER ROLE %I RESET default_transaction_read_only', current_user)
  WHEN 'database' THEN format('ALTER DATABASE %I RESET default_transaction_read_only', current_database())
  WHEN 'database user' THEN
    format('ALTER ROLE %I IN DATABASE %I RESET default_transaction_read_only', current_user, current_database())
  WHEN 'configuration file' THEN
    'ALTER SYSTEM RESET default_transaction_read_only, or take it out of postgresql.conf, and SELECT pg_reload_conf()'
  ELSE 'name the server that takes changes in `dataSource`'
END
FROM pg_settings WHERE name = 'default_transaction_read_only' AND current_setting('transaction_read_only') = 'on'
"""


def connect(
    conninfo: str, settings: Mapping[str, str] | None = None, **more: Any
) -> "psycopg.Connection[tuple[object, ...]]":
    """Open a connection in autocommit. A commit is durable before it returns (`synchronous_commit=on`).

    `settings` are settings of the session, in addition to settings in the connection string. `more` are psycopg's
    options, such as a `tcp_user_timeout` of the client's side. Raises ConfigError for an invalid connection string,
    DatabaseUnavailable, DatabaseAccessDenied, or DatabaseError for a setting that the server refuses.
    """
    with translated():
        try:
            options = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, **_LIVENESS, **more}
            connection = open_session(conninfo, settings, **options)
        except (psycopg.Error, DatabaseError):
            POSTGRES_CONNECTIONS.add("failed")
            raise
        POSTGRES_CONNECTIONS.add("opened")
        return connection


def open_session(
    conninfo: str, settings: Mapping[str, str] | None = None, **more: Any
) -> "psycopg.Connection[tuple[object, ...]]":
    """Open a connection in autocommit with the settings of `_SESSION`, which override settings of the role.

    Settings `-c name=value` in the `options` of the connection string are applied after the connection was opened. At
    the start of a session a pooler would refuse them (PgBouncer: unsupported startup parameter) or ignore them; without
    a `search_path`, for example, an outbox in another schema would be found. `more` are psycopg's options. With
    `target_session_attrs=read-write` the session must be writable after its settings were applied. libpq would check
    earlier, and refuse a role that is read-only by default. Raises psycopg.Error, ConfigError for an invalid connection
    string, or DatabaseError if the server refuses a setting or the session stays read-only.
    """
    try:
        return _configured(conninfo, settings, more)
    except psycopg.OperationalError as error:
        if error.sqlstate or not TAKES_NO_CHANGES.search(evidence_of(error)):
            raise
        wants = more.get("target_session_attrs") or parameters_of(conninfo).get("target_session_attrs")
        if (wants or os.environ.get("PGTARGETSESSIONATTRS")) != "read-write":
            raise
    connection = _configured(conninfo, settings, {**more, "target_session_attrs": "primary"})
    try:
        _require_changes(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_changes(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
    """Raise DatabaseUnavailable if the session is read-only on a primary. The error shows a statement that resets the
    setting."""
    found = connection.execute(_READ_ONLY_BY).fetchone()
    if found is not None:
        source, reset = found
        raise DatabaseUnavailable(
            "the session is read-only, though the server is no standby: `default_transaction_read_only` is on",
            evidence=f"the setting comes from the {source}",
            next_step=f"{reset}; or set `default_transaction_read_only=off` in `dataSource`, for these sessions alone",
        )


def _configured(
    conninfo: str, settings: Mapping[str, str] | None, more: Mapping[str, Any]
) -> "psycopg.Connection[tuple[object, ...]]":
    """Open a session. Apply the settings in the connection string's `options`, then `_SESSION`, then `settings`."""
    parameters = parameters_of(conninfo)
    options = parameters.get("options")
    if options is None and not (parameters.get("service") or os.environ.get("PGSERVICE")):  # a service may have options
        options = os.environ.get("PGOPTIONS")
    own = _settings_in(options) if options is not None else None
    ours = {**_SESSION, **(settings or {})}
    if own is None:
        return _session(conninfo, ours, more)
    without = make_conninfo("", **{**parameters, "options": ""})  # empty, because libpq would else use PGOPTIONS
    try:
        return _session(without, {**own, **ours}, more)
    except pg.CantChangeRuntimeParam:  # a setting can only be made at the start of a session
        return _session(conninfo, ours, more)


def _session(
    conninfo: str, settings: Mapping[str, str], more: Mapping[str, Any]
) -> "psycopg.Connection[tuple[object, ...]]":
    # The client encoding is UTF-8 for any encoding of the database.
    connection = psycopg.connect(conninfo, autocommit=True, client_encoding="utf8", **more)
    try:
        if connection.info.server_version >= _HAS_IDLE_SESSION_TIMEOUT:
            settings = {"idle_session_timeout": "0", **settings}  # the harvester's sessions may be idle for long
        # `set_config` instead of SET, in which a list of schemas would be quoted as a single name.
        calls = [sql.SQL("set_config({}, {}, false)").format(name, value) for name, value in settings.items()]
        with _settings_taken():
            connection.execute(sql.SQL("SELECT {}").format(sql.SQL(", ").join(calls)))
        take_text_as_it_is(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _settings_taken() -> Iterator[None]:
    """Translate Postgres' errors for a refused setting of the session to DatabaseError."""
    try:
        yield
    except (pg.UndefinedObject, pg.InvalidParameterValue, pg.InsufficientPrivilege) as error:
        raise DatabaseError(
            "Postgres does not take a setting of the session",
            evidence=evidence_of(error),
            next_step="correct `options`, or the run-time parameters, in `dataSource`",
        ) from error


def _settings_in(options: str) -> dict[str, str] | None:
    """Return the settings in libpq's `options` by name; None if `options` contains anything but settings."""
    words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|[^\s\\])+", options)]
    found: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word == "-c" and words:
            word += words.pop(0)
        name, is_set, value = word.removeprefix("-c" if word.startswith("-c") else "--").partition("=")
        if not word.startswith(("-c", "--")) or not is_set:
            return None
        found[name.replace("-", "_")] = value
    return found


def lift_timeouts(connection: psycopg.Connection[Any]) -> None:
    """Disable the role's timeouts for this session, so that statements, transactions and pauses in them may be long.
    Raises psycopg.Error."""
    connection.execute(LIFT_TIMEOUTS)


def server_time(connection: psycopg.Connection[Any]) -> float:
    """Return the time by the server's clock, in Unix seconds. Raises psycopg's errors."""
    (row,) = connection.execute(_CLOCK)
    return float(row[0])


def require_session(conninfo: str) -> None:
    """Raise DatabaseError if a pooler assigns server processes by transaction instead of by session.

    With such a pooler, a session's settings, such as `synchronous_commit=on`, may be lost: the pooler gives the server
    process that has the settings to another client.
    """
    with connect(conninfo) as ours, connect(conninfo) as other, translated():
        first = ours.execute("SELECT pg_backend_pid()").fetchone()
        with other.transaction():  # a pooler by transaction would assign the server process that `ours` has released
            second = other.execute("SELECT pg_backend_pid()").fetchone()
    if first == second:
        raise DatabaseError(
            "the connection to Postgres is not a session: a pooler hands its server processes out by the transaction",
            evidence=f"two connections, open at once, were served by the same process ({first[0] if first else ''})",
            next_step="name Postgres itself in `dataSource`, or a pool by the session (PgBouncer: pool_mode = session)",
        )


def in_statement(part: sql.Composable) -> sql.Composable:
    """Prepare a part of SQL for a statement with bound values. In a quoted name or value each % is doubled, because
    psycopg interprets % even inside quotes. Another part is returned unchanged: each % in it has to be doubled."""
    is_quoted = isinstance(part, sql.Identifier | sql.Literal)
    return sql.SQL(part.as_string(None).replace("%", "%%")) if is_quoted else part


def rendered(statement: sql.Composed) -> sql.SQL:
    """Return a composed statement as a single text, for frequent statements. psycopg would join a composed statement at
    each call, and for a small statement this takes as long as all other work of psycopg."""
    return sql.SQL(statement.as_string(None))
