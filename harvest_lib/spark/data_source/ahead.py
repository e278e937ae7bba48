"""The offsets at which the micro-batches of a stream end, found without reading the contents of records."""

from typing import Any

from psycopg import sql

from harvest_lib.postgres.database import connect
from harvest_lib.source import Position, Selection, SnapshotSource
from harvest_lib.source.selection import COLUMNS
from harvest_lib.spark.data_source.attached import Attached, attached, table_of
from harvest_lib.spark.data_source.outbox_rows import NAME, explained, now, require_followed, require_seen
from harvest_lib.spark.data_source.pushed import as_sql
from harvest_lib.spark.data_source.read_options import ReadOptions
from harvest_lib.spark.data_source.windows import HIGHEST_ID, LOWEST_ID, Offset, Window, newest_snapshot
from harvest_lib.spark.seen_rows import seen_rows

_PAGE_ROWS = 5_000
_POSITION = ("source", "prev", "server", "cur", "after")


def offset_now(options: ReadOptions) -> dict[str, Any]:
    """Return the offset after all rows that are committed now. Raises OutboxTableError if no stream can read the
    outbox."""
    with connect(options.conninfo) as connection:
        require_followed(connection, options)
        snapshot, found, server = now(connection, options)
        seen = seen_rows(connection, table_of(options), str(snapshot), found.floor)
    place = {"source": "snapshot", "prev": str(snapshot), "server": server, "seen": seen}
    return {**place, "floor": found.floor, "closed": found.closed}


class Ahead:
    """Finds the position at which the next micro-batch ends, without reading the contents of records."""

    def __init__(self, options: ReadOptions) -> None:
        empty = {name: sql.SQL("''") for name in ("kafka_topic", "kafka_key")}
        none = {name: sql.SQL("ARRAY[]::text[]") for name in ("kafka_header_keys", "kafka_header_values")}
        columns = {**COLUMNS, **empty, **none, "kafka_value": sql.SQL("NULL::text")}
        conditions = list(map(as_sql, options.conditions))
        selection = Selection(table=table_of(options).identifier, columns=columns, conditions=conditions)
        self._options = options
        self._source = SnapshotSource(options.conninfo, selection, subscription=NAME)
        self._connection = connect(options.conninfo)
        self._at: Position | None = None

    def attached(self) -> Attached:
        """Return the attached segments. Raises OutboxTableError if rows are now deleted on delivery."""
        require_followed(self._connection, self._options)
        return attached(self._connection, self._options)

    def after(self, offset: Offset, floor: int, limit: int | None, until: Offset | None = None) -> Position | None:
        """Return the position after at most `limit` further records, together with the last rows before that position.
        If `limit` is None, return the position after all further records. Return None if there are no further records.
        `floor` is the lowest id that has a segment. With `until`, no record comes after the snapshot of this offset.

        Raises CheckpointError, ServerRegressed, or another HarvestError.
        """
        position = {name: offset[name] for name in _POSITION if name in offset}
        if until is not None and "cur" not in offset:
            window = Window(
                prev=offset["prev"], cur=until["prev"], first=LOWEST_ID, last=HIGHEST_ID, server=until["server"]
            )
            position = window.position
        if self._at != position:
            require_seen(self._connection, self._options, [offset])
            with explained():
                self._source.open(position)
            self._at = position
        if (found := self._further(limit)) is None:
            return None
        seen = newest_snapshot(found)
        if offset.get("initial") or seen != newest_snapshot(offset):
            return {**found, "seen": seen_rows(self._connection, table_of(self._options), seen, floor)}
        return {**found, "seen": offset["seen"]}

    def _further(self, limit: int | None) -> Position | None:
        page, left = None, 1 if limit is None else limit
        while left > 0:
            page = self._source.read(min(left, _PAGE_ROWS))
            if page is None:
                return None
            self._at = page.position
            left -= len(page.rows)
            if "cur" not in page.position:
                break
        assert page is not None  # noqa: S101 - a limit is at least 1
        if limit is None and "cur" in page.position:
            return {"source": page.position["source"], "prev": page.position["cur"], "server": page.position["server"]}
        return page.position

    def close(self) -> None:
        """Close the connections."""
        self._source.close()
        self._connection.close()
