"""The hook for Airflow connections of type `dagster`. Only the process that uses a connection reads its secrets."""

import asyncio
import json
import os
from contextlib import suppress

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import amask_secret

from harvest_lib.airflow.dagster.client import DagsterClient
from harvest_lib.airflow.dagster.endpoint import URL_VARIABLE, DagsterError, Endpoint, from_connection, from_url
from harvest_lib.airflow.provider import CONN_ID, CONN_TYPE


class ConnectionMissing(DagsterError):
    """Airflow has no such connection: add it, or correct `conn_id`."""


class DagsterHook(BaseHook):
    """Reach the Dagster webserver that an Airflow connection names.

    Without the connection `dagster_default`, the address in DAGSTER_URL is used. Any other connection has to exist.
    """

    conn_name_attr = "conn_id"
    default_conn_name = CONN_ID
    conn_type = CONN_TYPE
    hook_name = "Dagster"

    def __init__(self, conn_id: str = CONN_ID) -> None:
        """Make a hook. The connection is read at its first use."""
        super().__init__()
        self.conn_id = conn_id

    async def client(self) -> DagsterClient:
        """Return a client, which is an asynchronous context manager.

        This call does not block the event loop. Raises ConnectionMissing, or DagsterRefused for an invalid connection.
        """
        return DagsterClient(await self._endpoint())

    def test_connection(self) -> tuple[bool, str]:
        """Query Dagster's version. Return two values: True and the version if Dagster answers, else False and the
        error."""
        try:
            version, url = asyncio.run(self._version())
        except DagsterError as error:
            return False, str(error)
        return True, f"Dagster {version} answers at {url}"

    async def _version(self) -> tuple[str, str]:
        async with await self.client() as client:
            return await client.version(), client.url

    async def _endpoint(self) -> Endpoint:
        try:
            connection = await self.aget_connection(self.conn_id)
        except AirflowNotFoundException as error:
            if self.conn_id == CONN_ID:
                return from_url(os.environ.get(URL_VARIABLE, ""))
            raise ConnectionMissing(
                f"Airflow has no connection {self.conn_id!r}",
                evidence="neither a secrets backend, nor a variable AIRFLOW_CONN_…, nor Airflow's database has it",
                next_step=f"add it: airflow connections add {self.conn_id} --conn-type {CONN_TYPE} --conn-host HOST; "
                "or correct conn_id",
            ) from error
        with suppress(ValueError):
            await amask_secret(json.loads(connection.extra or "{}"))  # Airflow itself masks only the whole text
        return from_connection(self.conn_id, connection)
