"""The configuration of a harvester, from Airflow connections of the types `outbox`, `postgres` and `kafka`.

Errors name the connection and the field to correct, and never show a value that may be a secret. A setting that the
connection leaves out has the value of its variable `HARVEST_…`, else its default, as in `harvest run`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from harvest_lib.config import HarvestConfig
from harvest_lib.config.data_source import DataSource
from harvest_lib.config.reading import configured
from harvest_lib.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import Connection

POSTGRES_ID, KAFKA_ID = "postgres_conn_id", "kafka_conn_id"
"""Fields of an outbox connection: the names of other connections."""

_NAMED = ("outbox_table", "subscription", "leader_group_id")
_SERVERS, _SSL, _SETTINGS = "bootstrap_servers", "sslmode", "settings"
EXTRA = (*_NAMED, POSTGRES_ID, KAFKA_ID, _SERVERS, _SSL, _SETTINGS)
"""The extra fields of an outbox connection."""
_SHOWN_AS = {
    "outboxTable": "outbox_table",
    "leaderGroupID": "leader_group_id",
    "baseKafkaConfig": "kafka_conn_id",
    "dataSource": "host, database, login",
}
"""Fields of an outbox connection by the settings that they stand for."""
_OF_CONSUMERS = frozenset({"group.id", "auto.offset.reset", "enable.auto.commit"})
"""Settings of consumers, which every Kafka connection of Airflow has. A harvester has its own."""
_LIBPQ = frozenset(option.keyword.decode() for option in Conninfo.get_defaults())


def extra_of(connection: "Connection") -> dict[str, Any]:
    """Return the extra fields of an outbox connection that have a value. Raises ConfigError."""
    extra = _object(connection)
    if unknown := sorted(name for name in extra if name not in EXTRA):
        raise _wrong(connection, f"has the extra fields {', '.join(unknown)}", f"use {', '.join(EXTRA)}")
    return {name: value for name, value in extra.items() if value not in (None, "")}


def config_of(
    outbox: "Connection",
    *,
    postgres: "Connection | None" = None,
    kafka: "Connection | None" = None,
    elects: bool = False,
) -> HarvestConfig:
    """Return the configuration that an outbox connection describes. `postgres` and `kafka` are the connections that it
    names. `elects`: the caller joins the pool, so `leader_group_id` is required. Raises ConfigError with all
    problems."""
    extra = extra_of(outbox)
    settings = extra.get(_SETTINGS, {})
    if isinstance(settings, str):
        settings = _parsed(outbox, settings, f"`{_SETTINGS}`")
    given: dict[str, Any] = {name: str(extra[name]) for name in _NAMED if name in extra}
    given["data_source"] = _data_source(outbox, extra.get(_SSL), postgres)
    servers = extra.get(_SERVERS)
    if kafka is not None and servers:
        raise _wrong(outbox, f"has both {_SERVERS} and {KAFKA_ID}", "remove one of both")
    if kafka is not None:
        given["base_kafka_config"] = _kafka(kafka)
    elif servers:
        given["base_kafka_config"] = {"bootstrap.servers": str(servers)}
    try:
        return configured(**{**settings, **given}, elects=elects)
    except ConfigError as error:
        raise _joined(outbox, error.problems) from None


def _data_source(outbox: "Connection", sslmode: str | None, postgres: "Connection | None") -> DataSource:
    own = any((outbox.host, outbox.port, outbox.schema, outbox.login, outbox.password))
    if postgres is None and not outbox.host:
        raise _wrong(outbox, "has no host", f"add the host of Postgres, or name a connection in {POSTGRES_ID}")
    if postgres is not None and own:
        raise _wrong(outbox, f"has both a host or login and {POSTGRES_ID}", "remove one of both")
    parts = postgres or outbox
    found: dict[str, Any] = {"host": parts.host, "port": parts.port, "dbname": parts.schema, "user": parts.login}
    found["password"] = parts.password
    if postgres is not None:  # its other extra fields are for Airflow's own hook
        found |= {name: value for name, value in _object(postgres).items() if name in _LIBPQ}
    if sslmode:
        found["sslmode"] = sslmode
    text = make_conninfo("", **{name: str(value) for name, value in found.items() if value not in (None, "")})
    try:
        return DataSource.parse(text)
    except ConfigError as error:
        raise _wrong(parts, f"cannot be used: {error.cause}", error.next_step) from None


def _kafka(connection: "Connection") -> dict[str, Any]:
    found = {name: value for name, value in _object(connection).items() if name not in _OF_CONSUMERS}
    if "bootstrap.servers" not in found:
        raise _wrong(connection, "has no bootstrap.servers", "add it to the connection's configuration")
    return found


def _object(connection: "Connection") -> dict[str, Any]:
    return _parsed(connection, connection.extra or "{}", "extra")


def _parsed(connection: "Connection", text: str, field: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, Mapping):
        raise _wrong(connection, f"has no JSON object as {field}", 'write it as JSON: {"name": "value"}')
    return dict(found)


def _joined(outbox: "Connection", problems: Sequence[ConfigError]) -> ConfigError:
    causes = "; ".join(f"{each.cause} ({each.field})" if each.field else each.cause for each in problems)
    steps = "; ".join(dict.fromkeys(each.next_step for each in problems))
    return _wrong(outbox, in_form(f"is not valid: {causes}"), in_form(steps))


def in_form(text: str) -> str:
    """Return the text with the names of the connection's fields instead of the harvester's settings."""
    for setting, field in _SHOWN_AS.items():
        text = text.replace(setting, field)
    return text


def _wrong(connection: "Connection", what: str, next_step: str) -> ConfigError:
    name = f"the Airflow connection {connection.conn_id}"
    return ConfigError(f"{name} {what}", field="conn_id", next_step=next_step)
