"""Rows of a page that are sent in several batches. Pure, no I/O.

While many rows of a page wait, the page stays in memory in the format of Postgres, so that the waiting rows are handed
over natively too. When only few rows wait, these rows are copied to Python and the page is released.
"""

from collections.abc import Sequence

from harvest_lib.record import Row, row_bytes
from harvest_lib.record.rows import RowPage

_FEW = 32
"""A page stays in memory while at least 1/32 of its rows wait."""

_SMALL_ROWS = 1_000
"""The bytes of a list with this many rows are not counted, as counting costs too much. The rows of such a list are
small, since a page has at most `PAGE_BYTES`."""


class DeferredRows:
    """Waiting rows of a page, identified by their indexes in the page."""

    __slots__ = ("_is_counted", "_rows", "_waiting", "bytes")

    def __init__(self, rows: Sequence[Row]) -> None:
        self.bytes = 0
        """Bytes of the whole page while the page stays in memory; bytes of the waiting rows after the page is released;
        0 if bytes are not counted."""
        self._rows: Sequence[Row] | dict[int, Row] = rows  # a dictionary once the page is released
        self._waiting = set(range(len(rows)))
        self._is_counted = isinstance(rows, RowPage) or len(rows) < _SMALL_ROWS

    def take(self, places: Sequence[int]) -> Sequence[Row]:
        """Return the rows at the indexes `places`, as a page if the page is still in memory. Release memory that the
        remaining rows do not need."""
        self._waiting.difference_update(places)
        rows = self._rows
        if isinstance(rows, dict):
            taken: Sequence[Row] = [rows.pop(place) for place in places]
            self.bytes -= sum(map(row_bytes, taken)) if self._is_counted else 0
            return taken
        if len(places) == len(rows):
            taken = rows
        elif isinstance(rows, RowPage):
            taken = rows.pick(places)
        else:
            taken = [rows[place] for place in places]
        self._keep(rows)
        return taken

    def _keep(self, rows: Sequence[Row]) -> None:
        if isinstance(rows, RowPage) and len(self._waiting) * _FEW >= len(rows):
            self.bytes = rows.summary.bytes
            return
        self._rows = {place: rows[place] for place in sorted(self._waiting)}
        self.bytes = sum(map(row_bytes, self._rows.values())) if self._is_counted else 0
