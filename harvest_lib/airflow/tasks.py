"""The path of an Airflow task, and the assets that it updates, for operators."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

_LONGEST_ID, _DIGEST = 200, 16


def task_path(instance: Any, *, with_clears: bool = False) -> str:
    """Return a text of at most 200 characters that is the same for all tries of a task instance (`context["ti"]`): DAG,
    run, task, and the index of a mapped task. With `with_clears`, it differs after the task was cleared when it had
    ended."""
    parts = [instance.dag_id, instance.run_id, instance.task_id]
    if instance.map_index is not None and instance.map_index >= 0:
        parts.append(str(instance.map_index))
    if with_clears:  # Airflow sets it at a clear, and at no other time
        parts.append(str(instance.max_tries))
    path = "/".join(parts)
    if len(path) <= _LONGEST_ID:
        return path
    digest = hashlib.sha256(path.encode()).hexdigest()[:_DIGEST]
    return f"{path[: _LONGEST_ID - _DIGEST - 1]}-{digest}"


def tell_outlets(task: "BaseOperator", context: "Context", facts: Mapping[str, Any]) -> None:
    """Add `facts` to the asset events of the task's outlets, for the DAGs that are scheduled on the assets."""
    for each in task.outlets:
        if isinstance(each, Asset):
            context["outlet_events"][each].extra.update(facts)
