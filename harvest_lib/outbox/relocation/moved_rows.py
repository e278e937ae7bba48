"""Finds the rows of an outbox that came from another server, and gives them new transaction ids.

The `transaction_id` of a row is the transaction that wrote the row on its original server. The system column `xmin` is
the transaction that inserted the row on this server: a restore or a writer. The catalog shows the transaction that
created the row's segment. From these three transactions, this module concludes:

    transaction_id not assigned yet, above xmin, or older than the segment    the row came from another server
    several transaction_ids with the same xmin                                a restore inserted the rows
    transaction_id equals xmin                                                the row was written here
    any other case                                                            the row's id decides: see `Origin`
    xmin older than the segment                                               pg_upgrade: transaction ids continue

The id can decide because the sequence continues: rows that were moved have lower ids than rows written here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

FIRST_RANK = 3
"""The first normal transaction id of Postgres. Hundreds of ids are used before a new cluster is ready."""

_LAST_ID_NEXT_STEP = (
    "give the last id of the old server, the last value of its sequence when writers were stopped there: "
    "`harvest subscriptions move --last-id N`"
)

# The statement extends the 32 bits of an xmin to 64 bits with the id of the next transaction. The catalog row of a
# system column is never changed, so its xmin is the transaction that created the table. A window function finds the
# restored rows, because without statistics a join would compare each row with each other row.
_ORIGINS = """
WITH now AS (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xmax),
made AS (
  SELECT c.oid, now.xmax - mod(mod(now.xmax, 4294967296) - a.xmin::text::bigint + 4294967296, 4294967296) AS made_in
  FROM now, pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'ctid'
  WHERE i.inhparent = to_regclass(%(outbox)s)
), found AS (
  SELECT o.id, o.transaction_id::text::bigint AS transaction_id, made.made_in, now.xmax,
    now.xmax - mod(mod(now.xmax, 4294967296) - o.xmin::text::bigint + 4294967296, 4294967296) AS inserted_in
  FROM now, {outbox} AS o JOIN made ON made.oid = o.tableoid
), beside AS (
  SELECT found.*, min(transaction_id) OVER once <> max(transaction_id) OVER once AS restored
  FROM found WINDOW once AS (PARTITION BY inserted_in)
)
SELECT CASE
    WHEN transaction_id >= xmax OR transaction_id > inserted_in OR transaction_id < made_in OR restored THEN 'came'
    WHEN transaction_id = inserted_in THEN 'written'
    ELSE 'unknown' END AS kind,
  count(*), min(id), max(id), count(*) FILTER (WHERE inserted_in < made_in)
FROM beside GROUP BY 1
"""

_UNKNOWN_ABOVE = """
SELECT count(*), min(id) FROM {outbox} WHERE id > %(above)s AND (%(below)s::bigint IS NULL OR id < %(below)s)
"""

_SEQUENCE = """
SELECT name, pg_sequence_last_value(name::regclass), (SELECT max(id) FROM {outbox})
FROM pg_get_serial_sequence(%(outbox)s, 'id') AS name
"""

_REPLICATED = """
SELECT s.subname FROM pg_subscription AS s JOIN pg_subscription_rel AS r ON r.srsubid = s.oid
WHERE s.subenabled AND (r.srrelid = to_regclass(%(outbox)s)
  OR r.srrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass(%(outbox)s)))
"""

_RANK = """
CREATE TEMPORARY TABLE harvest_ranks ON COMMIT DROP AS
SELECT id, {states} AS states FROM {outbox} WHERE id <= %(last_id)s
"""

_STATES = "SELECT states, count(*) FROM harvest_ranks GROUP BY states"

_AMONG = "SELECT id FROM harvest_ranks WHERE states = ANY (%(states)s) ORDER BY id"

# Entries of parked ids get the new transaction ids too, since an entry matches its row by transaction id.
_STAMP = """
WITH parked AS (
  UPDATE {parked_ids} AS s SET transaction_id = r.rank::text::xid8
  FROM harvest_ranks AS k JOIN unnest(%(states)s::text[], %(ranks)s::bigint[]) AS r (states, rank) USING (states)
  JOIN {outbox} AS o ON o.id = k.id
  WHERE s.id = k.id AND s.transaction_id = o.transaction_id
)
UPDATE {outbox} AS o SET transaction_id = r.rank::text::xid8
FROM harvest_ranks AS k JOIN unnest(%(states)s::text[], %(ranks)s::bigint[]) AS r (states, rank) USING (states)
WHERE o.id = k.id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The rows that came from another server: their number, and their last id (None if there are no such rows).
    `is_upgraded`: transaction ids continue, as after pg_upgrade."""

    rows: int = 0
    last_id: int | None = None
    is_upgraded: bool = False


@dataclass(frozen=True, slots=True)
class MovedRows:
    """The rows of a native outbox. `outbox` must include its schema."""

    outbox: OutboxTable

    def check_quiet(self, connection: psycopg.Connection[Any]) -> None:
        """Raise OutboxTableError if logical replication writes into the outbox, or if the sequence is below the highest
        id."""
        with translated():
            replicated = connection.execute(_REPLICATED, self._values()).fetchall()
            sequence, at, highest = self._fetch(connection, _SEQUENCE) or (None, None, None)
        if replicated:
            raise OutboxTableError(
                f"logical replication still writes to {self.outbox}",
                evidence=f"the subscription {replicated[0][0]!r} of Postgres is enabled",
                next_step="stop the writers of the old server, wait until all rows have arrived, then "
                f"`ALTER SUBSCRIPTION {sql.Identifier(replicated[0][0]).as_string(None)} DISABLE` and run the command "
                "again",
            )
        if sequence is not None and highest is not None and (at or 0) < highest:
            raise OutboxTableError(
                f"the sequence of {self.outbox} is behind its rows: it would give out their ids again",
                evidence=f"{sequence} is at {at}, the highest id is {highest}; replication does not set sequences",
                next_step=f"SELECT setval('{sequence}', {highest})",
            )

    def origin(self, connection: psycopg.Connection[Any], last_id: int | None = None) -> Origin:
        """Find the rows that came from another server. Reads the whole table. `last_id` is the last id of the old
        server, if the operator gives it: raises OutboxTableError if a row contradicts it. Without `last_id`, raises
        OutboxTableError if the rows do not show which rows came from the old server."""
        with translated():
            rows = connection.execute(self._filled(_ORIGINS), self._values()).fetchall()
        kinds = {kind: (count, low, high, physical) for kind, count, low, high, physical in rows}
        came = kinds.get("came", (0, None, None, 0))
        if came[0] and came[3] == came[0]:
            return Origin(rows=came[0], last_id=came[2], is_upgraded=True)
        written, unknown = kinds.get("written"), kinds.get("unknown")
        if last_id is not None and not came[0] and written and written[1] <= last_id:
            raise OutboxTableError(
                f"no row up to {last_id} shows that it came from another server",
                evidence=f"the row {written[1]} was written here, or was restamped before its subscriptions were moved",
                next_step="without --last-id all of them count as written here, and are delivered again",
            )
        if last_id is None:
            last_id = self._last_id(connection, came[2], written[1] if written else None, unknown)
        elif came[2] is not None and came[2] > last_id:
            raise OutboxTableError(
                f"{last_id} was not the last id of the old server",
                evidence=f"the row {came[2]} came from there too: this server had no such transaction when it was made",
                next_step=_LAST_ID_NEXT_STEP,
            )
        if last_id is None:
            return Origin()
        count = self._fetch(connection, "SELECT count(*) FROM {outbox} WHERE id <= %(last_id)s", last_id=last_id)
        return Origin(rows=count[0] if count else 0, last_id=last_id)

    def _last_id(
        self,
        connection: psycopg.Connection[Any],
        last_came: int | None,
        first_written: int | None,
        unknown: tuple[Any, ...] | None,
    ) -> int | None:
        if last_came is not None and first_written is not None and first_written < last_came:
            raise OutboxTableError(
                "the rows alone do not show which of them came from the other server",
                evidence=f"the row {first_written} was written here, the later row {last_came} came from there",
                next_step=_LAST_ID_NEXT_STEP,
            )
        if unknown is not None:
            above = last_came if last_came is not None else -(2**63)
            values = {"above": above, "below": first_written}
            between = self._fetch(connection, _UNKNOWN_ABOVE, **values)
            if between is not None and between[0]:
                raise OutboxTableError(
                    "the rows alone do not show which of them came from the other server",
                    evidence=f"{between[0]} rows from id {between[1]} on came from there, or were written here after a "
                    "savepoint: both servers had transactions of these numbers",
                    next_step=_LAST_ID_NEXT_STEP,
                )
        return last_came

    def rank(
        self, connection: psycopg.Connection[Any], last_id: int, delivered: Sequence[sql.Composable]
    ) -> Mapping[str, int]:
        """Group the rows up to `last_id` by the subscriptions that have delivered them, in a temporary table of the
        caller's transaction. `delivered` contains an SQL condition for each subscription. Return the number of rows in
        each state. A state is a text with a digit for each condition: 1 if the condition is true, else 0."""
        states = sql.SQL(" || ").join(sql.SQL("CASE WHEN {} THEN '1' ELSE '0' END").format(each) for each in delivered)
        names = {"outbox": in_statement(self.outbox.identifier), "states": states}
        connection.execute(sql.SQL(_RANK).format(**names), {"last_id": last_id})
        return dict(connection.execute(_STATES).fetchall())

    def ids(self, connection: psycopg.Connection[Any], states: Sequence[str]) -> list[int]:
        """Return the ids of the rows that `rank` has put into any of the states, ascending."""
        return [each for (each,) in connection.execute(_AMONG, {"states": list(states)}).fetchall()]

    def stamp(self, connection: psycopg.Connection[Any], ranks: Mapping[str, int]) -> int:
        """Set the transaction ids of the rows that `rank` has grouped. `ranks` maps the state of a row to the row's new
        transaction id. Return the number of changed rows."""
        values = {"states": list(ranks), "ranks": list(ranks.values())}
        tables = {"outbox": self.outbox.identifier, "parked_ids": self.outbox.parked_ids.identifier}
        names = {name: in_statement(table) for name, table in tables.items()}
        return connection.execute(sql.SQL(_STAMP).format(**names), values).rowcount

    def _fetch(self, connection: psycopg.Connection[Any], statement: str, **values: Any) -> tuple[Any, ...] | None:
        with translated():
            return connection.execute(self._filled(statement), {**self._values(), **values}).fetchone()

    def _filled(self, statement: str) -> sql.Composed:
        return sql.SQL(statement).format(outbox=in_statement(self.outbox.identifier))

    def _values(self) -> dict[str, Any]:
        return {"outbox": str(self.outbox)}
