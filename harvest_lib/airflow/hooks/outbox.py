"""The hook for Airflow connections of type `outbox`."""

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from harvest_lib.airflow.compat import BaseHook
from harvest_lib.airflow.hooks.connections import ConnectionMissing, afind, find
from harvest_lib.airflow.outbox_connection import KAFKA_ID, POSTGRES_ID, config_of, extra_of, in_form
from harvest_lib.airflow.provider import OUTBOX_ID, OUTBOX_TYPE
from harvest_lib.config import HarvestConfig
from harvest_lib.config.reading import load_or_variables
from harvest_lib.errors import HarvestError
from harvest_lib.harvester.draining import require_ready
from harvest_lib.harvester.status import StatusReader
from harvest_lib.postgres.database import connect
from harvest_lib.subscriptions.backlog import Backlog

if TYPE_CHECKING:
    import psycopg

_FILE, _DSN = "HARVEST_CONFIG", "HARVEST_DSN"


class HarvestHook(BaseHook):
    """Reach the outbox, and the Kafka, that an Airflow connection of type `outbox` describes.

    Without the connection `outbox_default`, the file in HARVEST_CONFIG or the variables `HARVEST_…` are used, if
    HARVEST_CONFIG or HARVEST_DSN is set where the hook runs. Any other connection has to exist.
    """

    conn_name_attr = "conn_id"
    default_conn_name = OUTBOX_ID
    conn_type = OUTBOX_TYPE
    hook_name = "Outbox"

    def __init__(self, conn_id: str = OUTBOX_ID) -> None:
        """Make a hook. The connection is read at each call."""
        super().__init__()
        self.conn_id = conn_id

    def config(self, *, elects: bool = False) -> HarvestConfig:
        """Return the harvester's configuration. `elects`: the caller joins the pool, so the connection has to name it.
        Raises ConnectionMissing or ConfigError."""
        outbox = None
        with self._unless_variables():
            outbox = find(self.conn_id, OUTBOX_TYPE)
        if outbox is None:
            return load_or_variables(os.environ.get(_FILE), elects=elects).harvest
        extra = extra_of(outbox)
        return config_of(
            outbox,
            postgres=find(extra[POSTGRES_ID], "postgres") if POSTGRES_ID in extra else None,
            kafka=find(extra[KAFKA_ID], "kafka") if KAFKA_ID in extra else None,
            elects=elects,
        )

    async def aconfig(self) -> HarvestConfig:
        """Return the same as `config()`, without blocking the event loop."""
        outbox = None
        with self._unless_variables():
            outbox = await afind(self.conn_id, OUTBOX_TYPE)
        if outbox is None:
            return load_or_variables(os.environ.get(_FILE)).harvest
        extra = extra_of(outbox)
        return config_of(
            outbox,
            postgres=await afind(extra[POSTGRES_ID], "postgres") if POSTGRES_ID in extra else None,
            kafka=await afind(extra[KAFKA_ID], "kafka") if KAFKA_ID in extra else None,
        )

    def get_conn(self) -> "psycopg.Connection[tuple[object, ...]]":
        """Return a connection to the outbox's database, in autocommit. Raises HarvestError."""
        return connect(self.config().data_source.conninfo())

    def waiting(self) -> Backlog:
        """Return the backlog: the committed records that are not delivered. Raises HarvestError."""
        config = self.config()
        with connect(config.data_source.conninfo()) as connection:
            return StatusReader(connection, config).waiting()

    def test_connection(self) -> tuple[bool, str]:
        """Check what `harvest check` checks. Return two values: True and the warnings if a harvester could deliver,
        else False and the errors."""
        try:
            warnings = require_ready(self.config())
        except HarvestError as error:
            return False, in_form(str(error))
        found = "; ".join(f"{each.cause}: {each.next_step}" for each in warnings)
        return True, "Postgres, the outbox and Kafka are ready" + (f". Warnings: {found}" if found else "")

    def _unless_variables(self) -> AbstractContextManager[None]:
        """Return a context that suppresses ConnectionMissing if variables are used instead of the connection."""
        instead = self.conn_id == OUTBOX_ID and any(os.environ.get(name) for name in (_FILE, _DSN))
        return suppress(ConnectionMissing) if instead else nullcontext()
