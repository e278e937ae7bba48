"""Two DAGs: the first watches an outbox, and starts a run of the second for each record of the topic `orders`, once.

The connection `outbox_default` names the outbox. No Kafka is needed. `conf` of a run has the ids of its records.
"""

import os
from typing import Any

from airflow.sdk import AssetWatcher, dag, task

from harvest_lib.airflow.assets import outbox_asset
from harvest_lib.airflow.operators.event_runs import RunPerEventOperator
from harvest_lib.airflow.triggers.outbox_events import OutboxEventTrigger

orders = outbox_asset(
    os.environ.get("HARVEST_ORDERS_HOST", "localhost"),
    os.environ.get("HARVEST_ORDERS_DATABASE", "shop"),
    watchers=[AssetWatcher(name="orders", trigger=OutboxEventTrigger(name="airflow_orders", topics=["orders"]))],
)


@dag(dag_id="harvest_watch_orders", schedule=[orders], catchup=False, max_active_runs=1, tags=["harvest"])
def watch_orders() -> None:
    """Start a run for each order."""
    RunPerEventOperator(task_id="start", asset=orders, trigger_dag_id="harvest_order", retries=3)


@dag(dag_id="harvest_order", schedule=None, max_active_runs=4, tags=["harvest"], doc_md=__doc__)
def order() -> None:
    """Work on an order."""

    @task
    def work(dag_run: Any = None) -> object:
        return dag_run.conf["ids"]

    work()


watch_orders()
order()
