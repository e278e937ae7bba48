"""The table in which the source of a configuration parks the records that Kafka rejects."""

from typing import Any

import psycopg

from harvest_lib.config import HarvestConfig
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedIdTable, ParkedRecords
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.source.selection import COLUMNS, columns_of


def parked_table(
    connection: psycopg.Connection[Any], table: OutboxTable, config: HarvestConfig, subscription: str | None = None
) -> ParkedRecords | ParkedIdTable:
    """Return the table in which the configuration's source parks records. If the source marks, it is the outbox's table
    of parked records. If the source only reads, it is the table of parked ids, for the subscription."""
    mapped = config.columns is not None
    if config.source == "mark" or not (mapped or subscription is not None or table.kind(connection) == "native"):
        return ParkedRecords(table)
    columns = COLUMNS if config.columns is None else columns_of(config.columns)
    return ParkedIdTable(table, subscription or config.subscription, columns["id"], columns["transaction_id"])


def readable_parked_table(
    connection: psycopg.Connection[Any], table: OutboxTable, config: HarvestConfig, subscription: str | None = None
) -> ParkedRecords | ParkedIdTable:
    """Return the same. Raises DatabaseAccessDenied if row-level security hides parked records from this role."""
    parked = parked_table(connection, table, config, subscription)
    if isinstance(parked, ParkedRecords):
        check_all_rows(connection, [parked.table.identifier])
    return parked
