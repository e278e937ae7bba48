"""Connection string of Postgres: goharvest's `dataSource`, parsed by lib/pq's rules and passed to libpq.

Both forms are accepted: `postgres://` URLs and `key=value` pairs. In pairs, spaces may surround `=`, values with spaces
stand in single quotes, and a backslash escapes the next character. A single rule differs: lib/pq and libpq skip spaces
after `=`. They read `password= dbname=postgres`, the default in goharvest's documentation, as the password
`dbname=postgres`. Here a value is empty if a connection keyword and `=` follow the spaces, so the example means no
password and the database `postgres`. `user = bob` still means the user bob. A value that itself begins with a
connection keyword and `=` has to be quoted.

As in lib/pq, a name that is not a connection keyword is a run-time parameter of the session (`search_path=billing`).
"""

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from harvest_lib.config.problems import custom_error
from harvest_lib.conninfo import SECRETS
from harvest_lib.errors import ConfigError

_OF_LIBPQ = frozenset(option.keyword.decode() for option in Conninfo.get_defaults())
_DROPPED = frozenset({"binary_parameters", "disable_prepared_binary_result"})
"""Parameters that control how lib/pq sends queries. They are ignored, because psycopg decides that itself."""
_REFUSED = {
    "sslinline": "name files with `sslcert`, `sslkey` and `sslrootcert`: libpq reads certificates from files only",
    "krbspn": "set `krbsrvname`, from which libpq makes the principal",
}
_KEYWORDS = _OF_LIBPQ | _DROPPED | _REFUSED.keys()

_CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "sslcertmode": ("disable", "allow", "require"),
    "sslnegotiation": ("postgres", "direct"),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    "load_balance_hosts": ("disable", "random"),
}
"""Values that libpq accepts, in libpq's spelling. libpq would check a value only when it connects, and would report a
wrong value as a failed connection, so values are checked here first."""

_NAME = re.compile(r"(?P<name>[^\s=]+)\s*=(?P<spaces>\s*)")
_QUOTED = re.compile(r"'(?P<value>(?:[^'\\]|\\.)*)'\s*", re.DOTALL)
_UNQUOTED = re.compile(r"(?P<value>(?:[^\s\\]|\\.)*)\s*", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NEXT_PAIR = re.compile(r"(" + "|".join(sorted(_KEYWORDS, key=len, reverse=True)) + r")\s*=")
_RUN_TIME_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]*")
_QUOTE_IT = "put a value with spaces in single quotes, with a backslash before each ' and \\ in it"


class DataSource:
    """Connection parameters of Postgres. `str` and `repr` never show a password; `conninfo()` does.

    Unless configured otherwise, connections require a writable server (`target_session_attrs=read-write`) and have the
    application name `harvest`.
    """

    __slots__ = ("_parameters",)

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = dict(parameters)

    @classmethod
    def parse(cls, text: str, *, lib_pq_defaults: bool = False) -> "DataSource":
        """Parse a connection string.

        With `lib_pq_defaults`, missing parameters get goharvest's defaults: host localhost, port 5432, sslmode require,
        each unless libpq's environment variable for it is set. Without `lib_pq_defaults`, missing parameters stay
        missing, and libpq completes them. Raises ConfigError.
        """
        is_url = re.match(r"postgres(ql)?://", text)
        if re.search("[\0\ud800-\udfff]", unquote(text) if is_url else text):
            raise _error("contains a NUL character or a lone surrogate", "remove it")
        given = _parse_url(text) if is_url else _parse_pairs(text)
        parameters: dict[str, str] = {}
        run_time = []
        for name, value in given.items():
            if name in _REFUSED:
                raise _error(f"has `{name}`, which has no counterpart in libpq", _REFUSED[name])
            if name in _OF_LIBPQ:
                parameters[name] = value
            elif name not in _DROPPED:
                run_time.append(_run_time_option(name, value))
        if run_time:
            parameters["options"] = " ".join([*filter(None, [parameters.get("options")]), *run_time])
        if lib_pq_defaults:
            _complete_as_lib_pq(parameters)
        if not os.environ.get("PGTARGETSESSIONATTRS"):
            parameters.setdefault("target_session_attrs", "read-write")
        parameters.setdefault("fallback_application_name", "harvest")
        source = cls(parameters)
        source._check()
        return source

    def conninfo(self) -> str:
        """Return the connection string for `psycopg.connect`, with the password in clear text."""
        return make_conninfo("", **self._parameters)

    def __str__(self) -> str:
        hidden = {name: "***" for name in SECRETS | {"options"} if self._parameters.get(name)}
        shown = {name: value for name, value in self._parameters.items() if value} | hidden
        return make_conninfo("", **shown)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self._parameters == other._parameters if isinstance(other, DataSource) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._parameters.items()))

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validated, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def _validated(cls, value: object) -> "DataSource":
        if isinstance(value, DataSource):
            return value
        if not isinstance(value, str):
            raise PydanticCustomError("string_type", "not text")
        try:
            return cls.parse(value)
        except ConfigError as error:
            refusal = custom_error(complaint(error), error.next_step)
        raise refusal

    def _check(self) -> None:
        if not re.fullmatch(r"[0-9,]*", self._parameters.get("port", "")):
            raise _error("has a port that is not a number", _QUOTE_IT + ", or percent-encode it in a URL")
        if any("@" in host[1:] for host in self._parameters.get("host", "").split(",")):
            raise _error("has an `@` in its host", _QUOTE_IT + ", or percent-encode the password in a URL")
        for name, choices in _CHOICES.items():
            if (value := self._parameters.get(name, "")) and value not in choices:
                near = difflib.get_close_matches(value.lower(), choices, n=1)
                meant = f"did you mean `{near[0]}`? " if near else ""
                raise _error(f"has a `{name}` that libpq does not know", f"{meant}choose one of {', '.join(choices)}")


def _parse_pairs(text: str) -> dict[str, str]:
    """Parse `key=value` pairs as lib/pq does. libpq's own parser is not used: it accepts no run-time parameters, and
    its errors quote the text, password included."""
    pairs: dict[str, str] = {}
    position = len(text) - len(text.lstrip())
    while position < len(text):
        name = _NAME.match(text, position)
        if name is None:
            missing = "`=` without a name before it" if text[position] == "=" else "word without `=` after it"
            raise _error(f"has a {missing}, at character {position + 1}", _QUOTE_IT)
        start = name.end()
        if name["spaces"] and _NEXT_PAIR.match(text, start):
            pairs[name["name"]], position = "", start
            continue
        value = (_QUOTED if text.startswith("'", start) else _UNQUOTED).match(text, start)
        if value is None:
            raise _error(
                f"has a quote that does not end, at character {start + 1}", "end the value with a single quote"
            )
        if text[value.end("value") :] == "\\":
            raise _error("ends with a backslash that has nothing to protect", "write `\\\\` for a backslash")
        pairs[name["name"]], position = _ESCAPED.sub(r"\1", value["value"]), value.end()
    return pairs


def _parse_url(text: str) -> dict[str, str]:
    base, _, query = text.partition("?")
    scheme, _, rest = base.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    # If a password contains an unencoded / or ?, the rest of the password would be read as a host, database or setting.
    malformed = "@" in path or (not at and "@" in query)
    try:
        # lib/pq takes an unencoded @ in a password literally; in libpq the host would begin there.
        base = f"{scheme}://{user.replace('@', '%40')}{at}{host}{slash}{path}"
        parameters = {name: str(value) for name, value in conninfo_to_dict(base).items()}
        parameters |= dict(parse_qsl(query, strict_parsing=bool(query), errors="strict"))
    except (psycopg.Error, ValueError):
        malformed = True  # the error is raised below, because this exception quotes the text, password included
    if malformed:
        raise _error(
            "is not a URL that libpq understands",
            "write postgres://user:password@host:5432/dbname?sslmode=require, special characters percent-encoded",
        )
    return parameters


def _run_time_option(name: str, value: str) -> str:
    near = difflib.get_close_matches(name.lower(), _KEYWORDS, n=1, cutoff=0.8)
    if near:
        raise _error("has a name that is no connection keyword", f"did you mean `{near[0]}`? {_QUOTE_IT}")
    if not _RUN_TIME_PARAMETER.fullmatch(name):
        raise _error("has a name that is neither a connection keyword nor a run-time parameter", _QUOTE_IT)
    escaped = re.sub(r"([\s\\])", r"\\\1", value)
    return f"-c {name}={escaped}"


def _complete_as_lib_pq(parameters: dict[str, str]) -> None:
    if "service" in parameters:
        return  # values of the service override defaults, and only libpq can read the service's file
    defaults = {"host": "localhost", "port": "5432", "sslmode": "require"}
    if parameters.get("hostaddr") or os.environ.get("PGHOSTADDR"):
        del defaults["host"]
    for name, default in defaults.items():
        if not parameters.get(name) and not os.environ.get(f"PG{name.upper()}"):
            parameters[name] = default


_SUBJECT = "`dataSource` "


def complaint(error: ConfigError) -> str:
    """Return the cause of an error of `DataSource.parse`, without the leading `dataSource`."""
    return error.cause.removeprefix(_SUBJECT)


def _error(message: str, remedy: str) -> ConfigError:
    return ConfigError(_SUBJECT + message, field="dataSource", next_step=remedy)
