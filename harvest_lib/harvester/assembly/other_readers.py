"""Two steps before a term that marks and purges: one for pending acknowledgements, one for other readers.

- A leader with the delivery `sequenced` may have stored acknowledgements and died before it wrote them to Kafka. The
  rows of their records are purged, so no other process would write these acknowledgements, and readers would never see
  the records.
- Subscriptions may read the table. A term that marks would delete records that these subscriptions have not read.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from harvest_lib.checkpoints.stores import PostgresCheckpointStore
from harvest_lib.config import HarvestConfig
from harvest_lib.delivery import acknowledge_again
from harvest_lib.errors import (
    CheckpointError,
    DatabaseAccessDenied,
    DatabaseUnavailable,
    KafkaAccessDenied,
    KafkaUnavailable,
)
from harvest_lib.grants.needed import using
from harvest_lib.harvester.assembly.factory import make_checkpoints
from harvest_lib.kafka_client import KafkaProducerProvider
from harvest_lib.leadership import Term
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import connect, in_statement

_log = logging.getLogger(__name__)

_FOUND = """
SELECT subscription, source = 'mark', coalesce(checkpoint -> 'intents', '[]') <> '[]'::jsonb FROM {subscriptions}
WHERE source <> 'mark' OR subscription = %(subscription)s ORDER BY subscription, shard
"""


def before_term(config: HarvestConfig, term: Term, stopping: threading.Event, step: Callable[[], object]) -> None:
    """Run `step` before a term marks rows. If a server is unavailable, wait and retry until the term ends."""
    complaint = ""
    while term.is_live() and not stopping.is_set():
        try:
            step()
        except (DatabaseUnavailable, DatabaseAccessDenied, KafkaUnavailable, KafkaAccessDenied) as error:
            if error.evidence != complaint:
                complaint = error.evidence
                _log.warning("harvest_interrupted", extra={"reason": str(error)})
            stopping.wait(config.limits.io_error_backoff_seconds)
        else:
            return


def refuse_readers(connection: psycopg.Connection[Any], config: HarvestConfig, table: OutboxTable) -> bool:
    """Raise CheckpointError if a subscription reads the table, since `mark` would delete its records. Return True if
    the configured subscription has pending acknowledgements. Raises DatabaseAccessDenied if this role may not read the
    table of subscriptions, because records could be lost unnoticed."""
    found: list[tuple[Any, ...]] = []
    if (subscriptions := table.beside(connection, "subscriptions")) is not None:
        statement = sql.SQL(_FOUND).format(subscriptions=in_statement(subscriptions.identifier))
        with using(connection, subscriptions.identifier, "SELECT"):
            found = connection.execute(statement, {"subscription": config.subscription}).fetchall()
    if readers := sorted({name for name, marks, _ in found if not marks}):
        raise CheckpointError(
            f"{table} is read by subscriptions, and `source: mark` would delete records that they have not read",
            evidence=f"{', '.join(map(repr, readers))} in {table.subscriptions}",
            next_step="use `source: auto` or `snapshot`, and stop processes that still mark; if no reader is left: "
            f"`harvest subscriptions remove {readers[0]}`",
        )
    return any(marks and pending for _, marks, pending in found)


def acknowledge_pending(
    config: HarvestConfig, table: OutboxTable, leader_id: UUID, producer_provider: KafkaProducerProvider
) -> None:
    """Write pending acknowledgements to Kafka, under a new epoch that fences the previous leader. Acknowledgements for
    a missing topic stay pending. Raises CheckpointError as `refuse_readers` does, or another HarvestError."""
    with connect(config.data_source.conninfo()) as connection:
        if not refuse_readers(connection, config, table):
            return
    acknowledge = partial(acknowledge_again, config.kafka_settings(for_producer=True), provider=producer_provider)
    with closing(PostgresCheckpointStore(make_checkpoints(config, table, "mark", 0), acknowledge)) as store:
        store.lead(leader_id)
        store.save(replace(store.load(), intents=()))


def refuse_readers_now(config: HarvestConfig, table: OutboxTable) -> None:
    """Open a connection and call `refuse_readers` on it."""
    with connect(config.data_source.conninfo()) as connection:
        refuse_readers(connection, config, table)
