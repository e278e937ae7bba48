"""The button that leads from a task in Airflow to its run in Dagster.

Airflow shows the text that the task's XCom holds under the link's key. Airflow itself stores it when a task has ended.
`publish` stores it once the run is known, so that the button is there while the run goes on, and after any end.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom
from asgiref.sync import sync_to_async

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

_log = logging.getLogger(__name__)


class DagsterRunLink(BaseOperatorLink):
    """The button "Dagster run" of a task that `DagsterJobOperator` makes."""

    name = "Dagster run"

    def get_link(self, operator: "BaseOperator", *, ti_key: "TaskInstanceKey") -> str:  # noqa: ARG002 - Airflow's
        """Return the address that `publish` stored, else an empty text. Airflow calls this where the task ran."""
        instance: Any = ti_key
        return BaseXCom.get_value(ti_key=instance, key=self.xcom_key) or ""


def task_instance(instance: Any) -> dict[str, Any]:
    """Return the fields that name a task instance, as the arguments of a trigger."""
    return {name: getattr(instance, name) for name in ("dag_id", "run_id", "task_id", "map_index")}


async def publish(instance: Mapping[str, Any], url: str) -> None:
    """Store a run's address as the link of a task instance, from the triggerer or from a worker.

    The wait for the run is worth more than its link, so an error is logged only.
    """
    try:
        # Not by the XCom backend that is configured: Airflow reads links without it. And not by `aset`, which the
        # process of `dag.test()` does not have.
        await sync_to_async(BaseXCom.set)(DagsterRunLink().xcom_key, url, **instance)
    except Exception:  # noqa: BLE001 - Airflow's own errors of any kind
        _log.exception("the link to the Dagster run could not be stored: %s", url)
