"""Rows of a page that are sent in several batches. Pure, no I/O.

A page as Postgres has sent it is kept while many of its rows wait, so that they too are handed over natively. When few
rows wait, they are copied to Python and the page is released.
"""

from collections.abc import Sequence

from harvest_lib.record import Row, row_bytes
from harvest_lib.record.rows import RowPage

_FEW = 32
"""A page is kept while at least 1 in this many of its rows waits."""

_SMALL_ROWS = 1_000
"""The bytes of a larger list are not counted, as that costs too much: its rows are small, since a page has at most
`PAGE_BYTES`."""


class DeferredRows:
    """Waiting rows of a page, known by their places in it."""

    __slots__ = ("_is_counted", "_rows", "_waiting", "bytes")

    def __init__(self, rows: Sequence[Row]) -> None:
        self.bytes = 0
        """Size of the waiting rows, or of the page that is kept for them."""
        self._rows: Sequence[Row] | dict[int, Row] = rows  # a dictionary once the page is released
        self._waiting = set(range(len(rows)))
        self._is_counted = isinstance(rows, RowPage) or len(rows) < _SMALL_ROWS

    def take(self, places: Sequence[int]) -> Sequence[Row]:
        """Return the rows at `places`, as a page if the page was kept. Keep no more memory than the other rows need."""
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
