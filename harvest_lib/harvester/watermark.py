"""The time before which every committed record of a subscription is delivered.

Each reading notes the time and the highest id that a reader sees at this time (a *sample*). Later readings find the
lowest id that is not delivered. Every record that was committed before the time of a sample has an id up to the
sample's, so the newest sample below the lowest undelivered id gives the time.

Promises
- The time is true: each record whose commit had returned before this time, by Postgres's clock, is delivered. The times
  of creation that writers set do not matter.
- The time may be earlier than necessary, and is unknown in doubt: after a start while records wait, for a backlog that
  is only estimated, and if the parked records may not be read.
- A parked or held record is not delivered. The time stays before its commit until the record is retried or dropped.
- A reading is a single snapshot of Postgres, taken after the time of its sample, and reads a bounded number of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import DatabaseAccessDenied
from harvest_lib.harvester.assembly.factory import make_selection
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.subscriptions.backlog import Backlog
from harvest_lib.subscriptions.shards import SubscriptionShard

MOST_SAMPLES = 60
"""Largest number of samples. Beyond this number, every second sample is dropped."""

_SAMPLE = "SELECT extract(epoch FROM transaction_timestamp())::float8, (SELECT max({id})::bigint FROM {table})"
# A table without a page has no row. So a side table of the other way of reading, which few may read, is no obstacle.
_READABLE = """
SELECT coalesce(has_table_privilege(to_regclass(%(side)s), 'SELECT'), false),
       pg_relation_size(to_regclass(%(side)s)) = 0
"""
_PARKED = "SELECT min(id)::bigint, max(id)::bigint FROM {table} {which}"


class WatermarkSample(NamedTuple):
    """The time `at` (Unix seconds of Postgres's clock), and the highest id that a reader sees at this time; None
    without a record."""

    at: float
    last_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryProgress:
    """A reading: the backlog, the shards of the configured subscription (empty for a marked table), the time in Unix
    seconds before which every committed record is delivered, None if it is unknown, and whether records are parked."""

    waiting: Backlog
    shards: Sequence[SubscriptionShard] = ()
    delivered_until: float | None = None
    has_parked: bool = False


class Watermark:
    """Reads the progress of a subscription. `samples` come from an earlier object whose readings continue."""

    def __init__(self, samples: Sequence[WatermarkSample] = ()) -> None:
        self.samples = list(samples)
        self._until: float | None = None

    def read(self, connection: psycopg.Connection[Any], config: HarvestConfig) -> DeliveryProgress:
        """Read the progress through a connection in autocommit. Raises HarvestError."""
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with translated(), connection.transaction():
            table = OutboxTable.parse(config.outbox_table).placed(connection)
            row = connection.execute(make_selection(config, table).fill(_SAMPLE)).fetchone()
            parked = _parked(connection, config, table)
            status = StatusReader(connection, config)
            shards = status.configured()
            read = status.read(shards)
            waiting = status.waiting(read)
        if row is None or parked is None:
            return DeliveryProgress(waiting=waiting, shards=shards)
        parts = [each for _, each in read] or [waiting]
        first_ids = [each.first_id for each in parts if not each.is_empty] + [low for low, _ in parked]
        last_ids = [each for each in (row[1], *(high for _, high in parked)) if each is not None]
        self.note(WatermarkSample(row[0], max(last_ids, default=None)))
        is_known = None not in first_ids and not waiting.is_estimate
        lowest = min((each for each in first_ids if each is not None), default=None)
        return DeliveryProgress(
            waiting=waiting,
            shards=shards,
            delivered_until=self.until(lowest) if is_known else self._until,
            has_parked=bool(parked),
        )

    def note(self, sample: WatermarkSample) -> None:
        """Add a sample."""
        self.samples.append(sample)
        if len(self.samples) > MOST_SAMPLES:
            del self.samples[1::2]

    def until(self, first_id: int | None) -> float | None:
        """Return the time of the newest sample that is delivered. `first_id` is the lowest id that is not delivered;
        None if every record is delivered."""
        for place in reversed(range(len(self.samples))):
            at, last_id = self.samples[place]
            if first_id is None or (last_id is not None and last_id < first_id):
                del self.samples[:place]
                self._until = max(at, self._until or at)
                break
        return self._until


def _parked(
    connection: psycopg.Connection[Any], config: HarvestConfig, table: OutboxTable
) -> list[tuple[int, int]] | None:
    """Return the lowest and the highest id of parked records, for each side table that has some. Return None if a side
    table with pages may not be read."""
    found: list[tuple[int, int]] = []
    for name in ("parked", "parked_ids"):
        side = table.beside(connection, name)
        if side is None:
            continue
        is_readable, is_bare = connection.execute(_READABLE, {"side": str(side)}).fetchone() or (False, False)
        if not is_readable:
            if is_bare:
                continue
            return None
        try:
            check_all_rows(connection, [side.identifier])
        except DatabaseAccessDenied:  # a policy hides rows
            return None
        which = sql.SQL("WHERE subscription = %(subscription)s" if name == "parked_ids" else "")
        statement = sql.SQL(_PARKED).format(table=in_statement(side.identifier), which=which)
        row = connection.execute(statement, {"subscription": config.subscription}).fetchone()
        if row is not None and row[0] is not None:
            found.append((row[0], row[1]))
    return found
