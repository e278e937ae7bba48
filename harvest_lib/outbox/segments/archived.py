"""The list of an outbox's archived segments: the table `<outbox>_archived`.

An outbox has an archive once this table exists. From then on a segment is dropped only if the table lists it in its
present state. `DROP TABLE` ends that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.outbox.segments.segment_list import Segment, Segments
from harvest_lib.outbox.short_locks import exclusively
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement, translated

_CREATE = """
CREATE TABLE IF NOT EXISTS {archived} (
  segment          TEXT PRIMARY KEY,
  url              TEXT NOT NULL,
  records          BIGINT NOT NULL,
  last_transaction XID8,
  archived_at      TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp()
)"""

_PUT = """
INSERT INTO {archived} (segment, url, records, last_transaction) VALUES (%s, %s, %s, %s::text::xid8)
ON CONFLICT (segment) DO UPDATE
SET (url, records, last_transaction, archived_at) =
    (excluded.url, excluded.records, excluded.last_transaction, clock_timestamp())
"""

# Archived rows keep their transaction, unless all of them were parked and put back.
_IS_ANOTHER = """
SELECT a.records > 0 AND (SELECT transaction_id FROM {segment} ORDER BY transaction_id LIMIT 1) > a.last_transaction
FROM {archived} AS a WHERE a.segment = %s AND a.url = %s
"""

_FORGET = "DELETE FROM {archived} WHERE segment = %s"

_NAMES = "SELECT segment FROM {archived} WHERE url = %s"

# A record that was parked and put back has a transaction id of its own.
_IS_AS_IT_WAS = """
SELECT (%s OR a.records = (SELECT count(*) FROM {segment})) AND a.last_transaction IS NOT DISTINCT FROM (
  SELECT transaction_id FROM {segment} ORDER BY transaction_id DESC LIMIT 1
)
FROM {archived} AS a WHERE a.segment = %s
"""


@dataclass(frozen=True, slots=True)
class ArchivedSegments:
    """The archived segments of an outbox. All calls raise DatabaseError."""

    outbox: OutboxTable

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Create the table: from then on only archived segments are dropped. Needs the owner's rights."""
        self._execute(connection, _CREATE)

    def put(
        self, connection: psycopg.Connection[Any], segment: str, *, url: str, records: int, last_transaction: int | None
    ) -> None:
        """Note that a segment is in an archive, with its number of records and the last transaction."""
        self._execute(connection, _PUT, segment, url, records, last_transaction)

    def is_another(self, connection: psycopg.Connection[Any], segment: Segment, url: str) -> bool:
        """Return True if the segment has later rows instead of the archived rows: the ids began again."""
        names = {"segment": in_statement(segment.table.identifier)}
        return self._execute(connection, _IS_ANOTHER, segment.name, url, **names).fetchone() == (True,)

    def forget(self, connection: psycopg.Connection[Any], segment: Segment) -> None:
        """Note that a segment is about to be archived again: until it is noted again, it is not dropped.

        An attempt that fails halfway may leave an incomplete archive. A segment that is being dropped stays noted.
        """
        placed = self.outbox.placed(connection)
        with exclusively(connection, placed):  # no drop continues that read the list before
            attached = [each.table for each in Segments(placed).read(connection) if not each.detaching]
            if segment.table in attached:
                self._execute(connection, _FORGET, segment.name)

    def names(self, connection: psycopg.Connection[Any], url: str) -> Sequence[str]:
        """Return the segments in an archive, dropped segments too."""
        return [row[0] for row in self._execute(connection, _NAMES, url)]

    def missing(self, connection: psycopg.Connection[Any], segment: Segment, *, uncounted: bool = False) -> str:
        """Return why a closed segment is not fully archived; empty if it is, or the outbox has no archive.

        `uncounted` compares only the last transaction, which reads a single row.
        """
        placed = self.outbox.placed(connection)
        if not placed.archived.exists(connection):
            return ""
        names = {"segment": in_statement(segment.table.identifier)}
        row = self._execute(connection, _IS_AS_IT_WAS, uncounted, segment.name, **names).fetchone()
        if row is None:
            return "it is not in the archive yet: `harvest segments archive`"
        changed = "it has changed since it was archived: `harvest segments archive`, `--again` if rows were deleted"
        return "" if row[0] else changed

    def _execute(
        self, connection: psycopg.Connection[Any], query: str, *values: object, **names: sql.Composable
    ) -> psycopg.Cursor[Any]:
        archived = in_statement(self.outbox.placed(connection).archived.identifier)
        with translated():
            return connection.execute(sql.SQL(query).format(archived=archived, **names), values)
