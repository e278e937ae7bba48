"""Warnings about a table, for its writers: logged when a harvester starts, and printed by `harvest check`."""

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
    """Return why the ids of the table will end, None if they last. Raises DatabaseError."""
    return IdSequences(str(table), config.columns.id if config.columns is not None else "id").end(connection)


def rows_unstamped(
    connection: psycopg.Connection[Any], config: HarvestConfig, table: OutboxTable
) -> OutboxTableError | None:
    """Return why rows may be passed over by a source that goes by transaction ids, None if none are. `config` has
    `auto` resolved. Raises DatabaseError."""
    goes_by_transactions = config.source != "mark" and config.columns is None
    return unstamped(connection, table) if goes_by_transactions else None


def warn_of_table(connection: psycopg.Connection[Any], config: HarvestConfig, table: OutboxTable) -> None:
    """Log what does not keep a harvester from working, and keeps writers or their rows from it."""
    for event, find in (("ids_end", ids_end), ("rows_unstamped", rows_unstamped)):
        if found := find(connection, config, table):
            fields = {"reason": found.cause, "evidence": found.evidence, "next_step": found.next_step}
            _log.warning(event, extra=fields)
