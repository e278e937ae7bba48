"""The common part of the operators on an outbox."""

import hashlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk import Asset, BaseOperator

from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.lineage import Lineage
from harvest_lib.airflow.operators.raised import permanent
from harvest_lib.airflow.provider import OUTBOX_ID
from harvest_lib.config import HarvestConfig
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import connect

if TYPE_CHECKING:
    import psycopg
    from airflow.sdk import Context

_LONGEST_ID, _DIGEST = 200, 16


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

    def _tell_outlets(self, context: "Context", facts: Mapping[str, Any]) -> None:
        """Add `facts` to the asset events of the task's outlets, for the DAGs that are scheduled on the assets."""
        for each in self.outlets:
            if isinstance(each, Asset):
                context["outlet_events"][each].extra.update(facts)


def task_path(context: "Context", *, with_clears: bool = False) -> str:
    """Return a text of at most 200 characters that is the same for all tries of a task: DAG, run, task, and the index
    of a mapped task. With `with_clears`, it differs after the task was cleared."""
    instance: Any = context["ti"]
    parts = [instance.dag_id, instance.run_id, instance.task_id]
    if instance.map_index is not None and instance.map_index >= 0:
        parts.append(str(instance.map_index))
    if with_clears:  # the number of tries before the task was last cleared
        parts.append(str(max(instance.max_tries - (instance.task.retries or 0), 0)))
    path = "/".join(parts)
    if len(path) <= _LONGEST_ID:
        return path
    digest = hashlib.sha256(path.encode()).hexdigest()[:_DIGEST]
    return f"{path[: _LONGEST_ID - _DIGEST - 1]}-{digest}"
