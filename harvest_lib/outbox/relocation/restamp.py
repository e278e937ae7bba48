"""Restamping: rows that came from another server, by a restore or by replication, get transaction ids of this server.

A transaction_id is meaningful only on the server that assigned it. An id that this server has not assigned yet looks
like a future transaction: records with such an id are delivered much later, between other records, or never.

First the ids of all rows to restamp are stored in `<outbox>_restamp`, in one transaction, because the server's
transaction ids rise during the restamping. Then the rows are restamped in batches, ascending by id; each batch gets the
id of the transaction that restamps it. So records are read by id, the best estimate of their order on the former
server. Records written during the restamping are read between them. If a run is killed, the next run continues it.
"""

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.native_table import beside, create_beside
from harvest_lib.outbox.relocation import migration_queries as queries
from harvest_lib.outbox.short_locks import exclusively
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

BATCH_RECORDS = 10_000

_LIVE_SECONDS = 60.0
"""A subscription counts as running if its row was updated within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restamping:
    """The restamping of a native table by `harvest migrate --restamp`."""

    outbox: OutboxTable
    batch_records: int = BATCH_RECORDS

    def is_needed(self, connection: psycopg.Connection[Any]) -> bool:
        """Return True if the table has rows that this server cannot have written, or if a restamping is unfinished."""
        outbox = self.outbox.placed(connection)
        statement = sql.SQL(queries.FOREIGN).format(outbox=outbox.identifier)
        with translated():
            row = connection.execute(statement).fetchone()
        return (row is not None and bool(row[0])) or beside(outbox, "_restamp").exists(connection)

    def check_not_needed(self, connection: psycopg.Connection[Any]) -> None:
        """Raise OutboxTableError if restamping is needed, since a subscription would lose rows from another server."""
        if self.is_needed(connection):
            raise OutboxTableError(
                f"there are records in {self.outbox} that this server cannot have written",
                evidence="their transaction_id is not below the next transaction's, or they are being restamped: the "
                "table was restored or replicated from another server",
                next_step="stop its subscriptions and run `harvest subscriptions move`: they then continue; if there "
                "are none, or they shall begin again: `harvest migrate --restamp`",
            )

    def run(self, connection: psycopg.Connection[Any], *, force: bool = False) -> int:
        """Restamp the rows and return their number. Raises OutboxTableError if a subscription is running, or has a
        checkpoint from another server.

        `force` skips these two checks: a subscription may then deliver rows twice, or never.
        """
        outbox = self.outbox.placed(connection)
        self.outbox.check_native(connection)
        create_beside(connection, outbox)
        if not force:
            self._refuse_if_to_be_moved(connection, outbox)
            self._refuse_if_live(connection, outbox)
        with exclusively(connection, outbox):
            return self._restamp(connection, outbox)

    def _restamp(self, connection: psycopg.Connection[Any], outbox: OutboxTable) -> int:
        work = beside(outbox, "_restamp")
        tables = {"work": work, "outbox": outbox, "parked_ids": outbox.parked_ids}
        names = {name: in_statement(table.identifier) for name, table in tables.items()}
        with translated(), connection.transaction():
            if not work.exists(connection):
                connection.execute(sql.SQL(queries.CREATE_WORK).format(**names))
                connection.execute(sql.SQL(queries.FILL_WORK).format(**names))
        restamp = sql.SQL(queries.RESTAMP).format(**names)
        restamped = 0
        with translated():
            while row := connection.execute(restamp, {"limit": self.batch_records}).fetchone():
                restamped += row[1]
                if row[0] < self.batch_records:
                    break
            connection.execute(sql.SQL("DROP TABLE {work}").format(**names))
        return restamped

    def _refuse_if_live(self, connection: psycopg.Connection[Any], outbox: OutboxTable) -> None:
        statement = sql.SQL(queries.LIVE).format(subscriptions=in_statement(outbox.subscriptions.identifier))
        with translated():
            live = connection.execute(statement, {"seconds": _LIVE_SECONDS}).fetchall()
        if live:
            names = ", ".join(f"{name!r}, shard {shard}" for name, shard in live)
            raise OutboxTableError(
                f"records of {self.outbox} are not restamped while a subscription is at work",
                evidence=f"within the last {_LIVE_SECONDS:g} s there was a sign of life from {names}",
                next_step="stop its harvesters, wait a minute, and run the command again; or add --force, and rewind "
                "the subscription afterwards",
            )

    def _refuse_if_to_be_moved(self, connection: psycopg.Connection[Any], outbox: OutboxTable) -> None:
        statement = sql.SQL(queries.FROM_ELSEWHERE).format(subscriptions=in_statement(outbox.subscriptions.identifier))
        with translated():
            found = connection.execute(statement).fetchone()
        if found is not None:
            raise OutboxTableError(
                f"the subscription {found[0]!r} would lose its place",
                evidence=f"its checkpoint came from the server {found[1]}, and knows rows by their transaction ids "
                "from there",
                next_step="`harvest subscriptions move`, which gives rows transactions of this server too; or add "
                "--force, and rewind the subscription afterwards",
            )
