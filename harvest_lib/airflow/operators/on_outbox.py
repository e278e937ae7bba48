"""The common part of the operators on an outbox."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk import BaseOperator

from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.lineage import Lineage
from harvest_lib.airflow.operators.raised import permanent
from harvest_lib.airflow.provider import OUTBOX_ID
from harvest_lib.config import HarvestConfig
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import connect

if TYPE_CHECKING:
    import psycopg


class OpenOutbox(NamedTuple):
    """The configuration, the outbox table, and a connection to its database, in autocommit."""

    config: HarvestConfig
    table: OutboxTable
    connection: "psycopg.Connection[Any]"


class OutboxOperator(BaseOperator):
    """An operator on the outbox that an Airflow connection describes. It ends at once if the task is killed."""

    template_fields: Sequence[str] = ("conn_id",)

    def __init__(self, *, conn_id: str = OUTBOX_ID, **arguments: Any) -> None:
        """Make the task. `conn_id` names an Airflow connection of type `outbox`."""
        super().__init__(**arguments)
        self.conn_id = conn_id
        self._lineage = Lineage()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002 - the provider's
        """Return what the task has read and written, for Airflow's OpenLineage provider."""
        return self._lineage.facets()

    def on_kill(self) -> None:
        """End this process. Airflow's own handler of SIGTERM only calls this method."""
        raise SystemExit(128 + signal.SIGTERM)

    @contextmanager
    def _open(self) -> Iterator[OpenOutbox]:
        """Connect to the outbox. An error that no retry changes is raised as AirflowFailException."""
        with permanent():
            config = HarvestHook(self.conn_id).config()
            with connect(config.data_source.conninfo()) as connection:
                yield OpenOutbox(config, OutboxTable.parse(config.outbox_table), connection)
