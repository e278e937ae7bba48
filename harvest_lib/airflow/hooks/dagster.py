"""The hook for Airflow connections of type `dagster`."""

import asyncio
import os

from harvest_lib.airflow.compat import BaseHook
from harvest_lib.airflow.dagster.client import DagsterClient
from harvest_lib.airflow.dagster.endpoint import URL_VARIABLE, Endpoint, from_connection, from_url
from harvest_lib.airflow.hooks.connections import ConnectionMissing, afind
from harvest_lib.airflow.provider import DAGSTER_ID, DAGSTER_TYPE
from harvest_lib.errors import HarvestError


class DagsterHook(BaseHook):
    """Reach the Dagster webserver that an Airflow connection names.

    Without the connection `dagster_default`, the address in DAGSTER_URL is used. Any other connection has to exist.
    """

    conn_name_attr = "conn_id"
    default_conn_name = DAGSTER_ID
    conn_type = DAGSTER_TYPE
    hook_name = "Dagster"

    def __init__(self, conn_id: str = DAGSTER_ID) -> None:
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
        except HarvestError as error:
            return False, str(error)
        return True, f"Dagster {version} answers at {url}"

    async def _version(self) -> tuple[str, str]:
        async with await self.client() as client:
            return await client.version(), client.url

    async def _endpoint(self) -> Endpoint:
        try:
            connection = await afind(self.conn_id, DAGSTER_TYPE)
        except ConnectionMissing:
            if self.conn_id == DAGSTER_ID:
                return from_url(os.environ.get(URL_VARIABLE, ""))
            raise
        return from_connection(self.conn_id, connection)
