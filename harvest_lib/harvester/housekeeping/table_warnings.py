"""Warnings about problems of a table's writers. A harvester logs them at its start, and `harvest check` prints them."""

import logging
from typing import Any

import psycopg

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.id_sequences import IdsEnd, IdSequences
from harvest_lib.outbox.stamping import unstamped

_log = logging.getLogger(__name__)


def ids_end(connection: psycopg.Connection[Any], config: HarvestConfig, table: OutboxTable) -> IdsEnd | None:
    """Return a report if the table will run out of ids, else None. Raises DatabaseError."""
    return IdSequences(str(table), config.columns.id if config.columns is not None else "id").end(connection)


def rows_unstamped(
    connection: psycopg.Connection[Any], config: HarvestConfig, table: OutboxTable
) -> OutboxTableError | None:
    """Return an error if the source may skip rows because the trigger that sets transaction ids is missing, else None.
    `config` must have `auto` resolved. Raises DatabaseError."""
    return unstamped(connection, table) if config.mode.reads_segments else None


def warn_of_table(connection: psycopg.Connection[Any], config: HarvestConfig, table: OutboxTable) -> None:
    """Log problems of the table that do not stop a harvester, but stop writers or hide rows from the harvester."""
    if end := ids_end(connection, config, table):
        _log.warning("ids_end", extra={"reason": end.cause, "evidence": end.evidence, "next_step": end.next_step})
    if gap := rows_unstamped(connection, config, table):
        _log.warning(
            "rows_unstamped", extra={"reason": gap.cause, "evidence": gap.evidence, "next_step": gap.next_step}
        )
