"""The list of an outbox's archived segments: the table `<outbox>_archived`.

The outbox has an archive as soon as this table exists. From then on, a segment is dropped only if the table lists the
segment and the segment has not changed since it was archived. `DROP TABLE <outbox>_archived` ends this protection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.outbox.segments.segment_list import Segment, Segments
from harvest_lib.outbox.short_locks import exclusively
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

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

# If the lowest transaction id is above the last archived id, the archived rows are gone: a row keeps its transaction id
# unless it is parked and put back.
_IS_ANOTHER = """
SELECT a.records > 0 AND (SELECT transaction_id FROM {segment} ORDER BY transaction_id LIMIT 1) > a.last_transaction
FROM {archived} AS a WHERE a.segment = %s AND a.url = %s
"""

_FORGET = "DELETE FROM {archived} WHERE segment = %s"

_NAMES = "SELECT segment FROM {archived} WHERE url = %s"

# If a record was parked and put back after the archiving, its new transaction id is above the last archived id.
_IS_AS_IT_WAS = """
SELECT (%s OR a.records = (SELECT count(*) FROM {segment})) AND a.last_transaction IS NOT DISTINCT FROM (
  SELECT transaction_id FROM {segment} ORDER BY transaction_id DESC LIMIT 1
)
FROM {archived} AS a WHERE a.segment = %s
"""


@dataclass(frozen=True, slots=True)
class ArchivedSegments:
    """The archived segments of an outbox. All calls raise DatabaseError if the database fails."""

    outbox: OutboxTable

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Create the table. From then on, only archived segments are dropped. Needs the owner's rights."""
        self._execute(connection, _CREATE)

    def put(
        self, connection: psycopg.Connection[Any], segment: str, *, url: str, records: int, last_transaction: int | None
    ) -> None:
        """List a segment as archived at `url`, with its number of records and its highest transaction id."""
        self._execute(connection, _PUT, segment, url, records, last_transaction)

    def is_another(self, connection: psycopg.Connection[Any], segment: Segment, url: str) -> bool:
        """Return True if the segment has later rows instead of the archived rows, because ids were given out again."""
        names = {"segment": in_statement(segment.table.identifier)}
        return self._execute(connection, _IS_ANOTHER, segment.name, url, **names).fetchone() == (True,)

    def forget(self, connection: psycopg.Connection[Any], segment: Segment) -> None:
        """Remove a segment from the list, because it is about to be archived again. The segment is not dropped until
        `put` lists it again, since an attempt that fails halfway may leave an incomplete archive.

        A segment that is already being dropped stays listed.
        """
        placed = self.outbox.placed(connection)
        with exclusively(connection, placed):  # no drop is running that read the list before this change
            attached = [each.table for each in Segments(placed).read(connection) if not each.detaching]
            if segment.table in attached:
                self._execute(connection, _FORGET, segment.name)

    def names(self, connection: psycopg.Connection[Any], url: str) -> Sequence[str]:
        """Return the names of all segments archived at `url`, including segments that were dropped since."""
        return [row[0] for row in self._execute(connection, _NAMES, url)]

    def missing(self, connection: psycopg.Connection[Any], segment: Segment, *, uncounted: bool = False) -> str:
        """Return why a closed segment is not fully archived. The text is empty if the segment is fully archived, or if
        the outbox has no archive.

        With `uncounted`, records are not counted. Only the highest transaction id is compared, which reads one row.
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
