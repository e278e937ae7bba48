"""Parses connection strings of Postgres, as libpq does.

Promise: no error of this module quotes a connection string. Errors of libpq quote it, password included. Errors of
psycopg and of the name resolution quote the host, which may be a part of a password. Therefore every module parses a
connection string here before it passes the string to psycopg.
"""

import re
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from harvest_lib.errors import ConfigError

SECRETS = frozenset(
    {"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"}
    | {option.keyword.decode() for option in Conninfo.get_defaults() if option.dispchar}
)
"""Keywords with secret values. libpq marks such keywords: `*` for passwords, `D` for SCRAM keys and others. Some
keywords are also listed here, because an older libpq does not know all of them."""

_HIDDEN = "********"
_URL = re.compile(r"postgres(?:ql)?://")
_PORTS = re.compile(r"[0-9,]*")


def parameters_of(dsn: str, *, field: str = "dsn") -> dict[str, Any]:
    """Return the parameters of a connection string, in libpq's keyword form or as a URL.

    `psycopg.connect(**parameters_of(dsn))` connects as `psycopg.connect(dsn)` does. Raises ConfigError for a string
    that libpq cannot parse. A URL with an unencoded `@`, `/` or `?` in its password also raises ConfigError, because
    libpq would read the rest of the password as a host, a port or a database, and print it. The error names `field`,
    and quotes nothing.
    """
    parameters = None if "\0" in dsn else _read(dsn)
    if parameters is None or _is_torn(dsn, parameters):
        # Outside of any `except`: a traceback would show libpq's error as the context of ConfigError.
        raise ConfigError(
            "the connection string of Postgres cannot be read",
            field=field,
            next_step="write key=value pairs, a value with spaces, quotes or backslashes in single quotes with a "
            r"backslash before each ' and \ in it; or postgresql://user:password@host:5432/dbname with "
            "`@ : / ? % #` and spaces of user and password percent-encoded",
        )
    return parameters


def shown(dsn: str) -> str:
    """Return a connection string with its secrets hidden, for output. Raises ConfigError, which does not quote the
    string.

    The value of `options` is hidden too, because it may contain any setting of the session.
    """
    parameters = parameters_of(dsn)
    hidden = dict.fromkeys((SECRETS | {"options"}) & parameters.keys(), _HIDDEN)
    return make_conninfo("", **{**parameters, **hidden}) if hidden else dsn


def has_secret(dsn: str) -> bool:
    """Return True if a connection string contains a secret, or cannot be parsed."""
    try:
        return any(parameters_of(dsn).get(name) for name in SECRETS)
    except ConfigError:
        return True


def _read(dsn: str) -> dict[str, str] | None:
    try:
        return {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    except (psycopg.Error, ValueError):  # ValueError: a lone surrogate cannot be encoded as UTF-8
        return None


def _is_torn(dsn: str, parameters: Mapping[str, str]) -> bool:
    """Return True if a part of a password was parsed as a host, a port or a database."""
    hosts = parameters.get("host", "").split(",")
    if any("@" in host[1:] for host in hosts) or not _PORTS.fullmatch(parameters.get("port", "")):
        return True  # a leading @ is allowed: it begins the name of a socket in the abstract namespace
    if not _URL.match(dsn):
        return False
    path = dsn.partition("://")[2].partition("/")[2]
    return "@" in path.partition("?")[0]
