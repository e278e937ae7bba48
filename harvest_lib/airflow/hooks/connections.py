"""Airflow connections as the hooks read them. Only the process that uses a connection reads its secrets."""

import json
from typing import Any

from airflow.sdk import Connection

from harvest_lib.airflow.compat import AirflowNotFoundException, BaseHook, aget_connection, amask_secret, mask_secret
from harvest_lib.errors import ConfigError, HarvestError

_HOST = "--conn-host HOST"
_PLACES = {"kafka": """--conn-extra '{"bootstrap.servers": "HOST:9092"}'"""}
"""Options that say where the server is, by types of connections."""


class ConnectionMissing(HarvestError):
    """Airflow has no such connection: add it, or correct `conn_id`."""


def find(conn_id: str, conn_type: str) -> Connection:
    """Return a connection, and hide its secrets in logs. Raises ConnectionMissing, or ConfigError for another type."""
    try:
        found = _checked(BaseHook.get_connection(conn_id), conn_type)
    except AirflowNotFoundException as error:
        raise _missing(conn_id, conn_type) from error
    mask_secret(_extra(found))
    return found


async def afind(conn_id: str, conn_type: str) -> Connection:
    """Return the same as `find`, without blocking the event loop."""
    try:
        found = _checked(await aget_connection(conn_id), conn_type)
    except AirflowNotFoundException as error:
        raise _missing(conn_id, conn_type) from error
    await amask_secret(_extra(found))
    return found


def _checked(connection: Connection, conn_type: str) -> Connection:
    if connection.conn_type == conn_type:
        return connection
    raise ConfigError(
        f"the Airflow connection {connection.conn_id} is of type {connection.conn_type!r}, not {conn_type!r}",
        field="conn_id",
        next_step=f"name a connection of type {conn_type}, or correct the type in the form",
    )


def _extra(connection: Connection) -> Any:
    """Return the extra fields, which Airflow itself hides only as a whole text."""
    try:
        return json.loads(connection.extra or "{}")
    except ValueError:
        return {}


def _missing(conn_id: str, conn_type: str) -> ConnectionMissing:
    return ConnectionMissing(
        f"Airflow has no connection {conn_id!r}",
        evidence="neither a secrets backend, nor a variable AIRFLOW_CONN_…, nor Airflow's database has it",
        next_step=f"add it: airflow connections add {conn_id} --conn-type {conn_type} {_PLACES.get(conn_type, _HOST)}; "
        "or correct conn_id",
    )
