"""Actions of an operator on parked records."""

from typing import Any

import psycopg
from psycopg.sql import SQL

from infra.chaos.commands import harvest
from infra.chaos.system import System, SystemMode

_PARKED = SQL("SELECT count(*) FROM outbox_parked WHERE NOT held")
_PARKED_IDS = SQL("SELECT count(*) FROM outbox_parked_ids WHERE NOT held AND NOT retry")


def count(mode: SystemMode, connection: psycopg.Connection[Any]) -> int:
    """Count the parked records, without held records and, where only ids are parked, without requested retries."""
    row = connection.execute(_PARKED if mode.source == "mark" else _PARKED_IDS).fetchone()
    return int(row[0]) if row is not None else 0


def retry_all(system: System) -> None:
    """Request a retry of all parked records by `harvest park retry --all`."""
    harvest("park", "retry", "--all", "-f", system.operator_config())
