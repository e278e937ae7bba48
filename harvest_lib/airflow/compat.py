"""The parts of Airflow whose place or presence differs between the minor versions from 3.0 to 3.3.

All other modules of this package import these parts from here. Airflow 3.3 is what the types are checked with.

3.0  `BaseHook` is not in `airflow.sdk`, and has no `aget_connection`. `mask_secret` is in another module.
3.1  `BaseHook` and `mask_secret` are in `airflow.sdk`. `airflow.sdk` has no exceptions for tasks and no configuration.
3.2  As 3.3, but without `amask_secret`.

The table in docs/airflow.md has the features that a version lacks without a substitute, such as `on_kill` of a trigger.
"""

from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection
from asgiref.sync import sync_to_async

MINOR = int(version("apache-airflow-core").split(".")[1])

if TYPE_CHECKING or MINOR >= 2:  # noqa: PLR2004 - versions are listed above
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
    )
else:
    from airflow.configuration import conf
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
    )

if TYPE_CHECKING or MINOR >= 1:
    from airflow.sdk import BaseHook
    from airflow.sdk.log import mask_secret
else:
    from airflow.hooks.base import BaseHook
    from airflow.sdk.execution_time.secrets_masker import mask_secret

if TYPE_CHECKING or MINOR >= 3:  # noqa: PLR2004
    from airflow.sdk.log import amask_secret
else:

    async def amask_secret(secret: Any) -> None:
        """Hide a secret in logs, by a thread, in which the triggerer's channel to its supervisor may be waited for."""
        await sync_to_async(mask_secret)(secret)


async def aget_connection(conn_id: str) -> Connection:
    """Return a connection without blocking the event loop. Raises AirflowNotFoundException."""
    if MINOR >= 1:
        with suppress(AirflowNotFoundException):
            return await BaseHook.aget_connection(conn_id)
    # In the process of `dag.test()` the asynchronous way does not see Airflow's database.
    return await sync_to_async(BaseHook.get_connection)(conn_id)


__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "BaseHook",
    "aget_connection",
    "amask_secret",
    "conf",
    "mask_secret",
]
