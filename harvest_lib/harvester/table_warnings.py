"""Warnings about a table, for its writers: logged when a harvester starts, and printed by `harvest check`."""

import logging
from typing import Any

import psycopg

from harvest_lib.config import HarvestConfig
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.id_sequences import IdsEnd, IdSequences

_log = logging.getLogger(__name__)


def ids_end(connection: psycopg.Connection[Any], config: HarvestConfig, table: OutboxTable) -> IdsEnd | None:
    """Return why the ids of the table will end, None if they last. Raises DatabaseError."""
    return IdSequences(str(table), config.columns.id if config.columns is not None else "id").end(connection)


def warn_of_table(connection: psycopg.Connection[Any], config: HarvestConfig, table: OutboxTable) -> None:
    """Log what does not keep a harvester from working, and will keep writers from it."""
    if end := ids_end(connection, config, table):
        _log.warning("ids_end", extra={"reason": end.cause, "evidence": end.evidence, "next_step": end.next_step})
