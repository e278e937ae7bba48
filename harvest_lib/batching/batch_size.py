"""Batch size: large batches under a backlog, since each batch has a fixed cost, and small batches otherwise, so that no
record waits. Pure, no I/O.

After Kafka has refused a batch of n records, these n records are suspect. Each following batch has half of the records
that are still suspect, whether the batch before it was committed or not. So the refused record is alone in a batch
after about log2(n) batches. Other records are sent in large batches. No batch exceeds the given limit.

If Kafka does not take a batch in time, perhaps because brokers throttle harvest, the same batch would fail again. So
the next batch is limited to half as many records, and each full batch raises this limit by a quarter. After a small
batch has failed, the next batch has the same size at first, so that it includes records of other topics. After several
failures small batches shrink too: if records fail at random, no batch of a thousand records would ever be committed.
"""

from collections.abc import Sequence

from harvest_lib.native import NativeRows
from harvest_lib.record import PAGE_BYTES, Row, row_bytes

LARGEST_BATCH = 50_000
"""Limit of a batch in records. Bytes and time limit a batch too. After a crash up to this many records may be in Kafka
twice."""
LARGEST_TRANSACTION = 150_000
"""Limit of a batch in records if readers see no record twice. It is higher than `LARGEST_BATCH` because each
transaction has a fixed cost in the broker."""
_FIRST_BATCH = 1_000
BATCH_BYTES = 32_000_000
LARGE_PAGE_BYTES = BATCH_BYTES // 4
"""A page above this size has a single record. The batch ends after such a page, so that no other page is in memory."""
BATCH_SECONDS = 1.0

_LEAST_LATE_BYTES = 250_000
"""If half of a late batch has fewer bytes than this, the cause is a topic in trouble. The next batch does not become
smaller at once, because it has to include records of other topics."""

_FAILURES, _LEAST_BATCH = 2, 8
"""Small batches keep their size for `_FAILURES` failures in a row. Each further failure halves the size. Below
`_LEAST_BATCH`, the size starts again at `_FIRST_BATCH`."""

_SAMPLE = 8
"""Number of records of a full page that are measured with their keys and headers."""

_FIRST_PAGE = 500
_LARGEST_PAGE = 2_000

_SHORTEST_PAUSE_SECONDS = 0.002
_LONG_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.1
_PAUSE_GROWTH, _LONG_PAUSE_GROWTH = 1.25, 1.02
"""The pause reaches its maximum after three seconds without a record. Polls are most of an idle leader's cost."""


class BatchSize:
    """Limits of the next batch and of the next page, in records, and the pause after a poll without records. A batch
    has at most `most` records, a page at most `most_read`."""

    def __init__(self, most: int = LARGEST_BATCH, most_read: int | None = None) -> None:
        self._limit = most
        self._first_batch = min(_FIRST_BATCH, most)
        self._largest_page = min(_LARGEST_PAGE, most_read or _LARGEST_PAGE)
        self._first_page = min(_FIRST_PAGE, self._largest_page)
        self._doubtful = 0  # number of next records that include the cause of a refused batch
        self._most = float(most)
        self._failures = 0  # of small batches, in a row
        self._record_bytes = 0.0
        self._pause = _SHORTEST_PAUSE_SECONDS
        self.records = self._first_batch
        self.page = self._first_page
        self.largest = 0
        """The length of the longest value in the page that was measured last."""

    def another(self) -> "BatchSize":
        """Return a `BatchSize` with the same limits, for batches of another kind."""
        return BatchSize(min(self._limit, LARGEST_BATCH), self._largest_page)

    @property
    def is_doubtful(self) -> bool:
        """Return True if one of the next records caused the refusal of a batch."""
        return self._doubtful > 0

    def done(self, records: int, *, full: bool) -> None:
        """Note that a batch of `records` records was committed. The batch after a full batch may be twice as large."""
        self._doubtful = max(0, self._doubtful - records)
        self._failures = 0
        if full:
            self._most = min(self._limit, self._most * 1.25)
        if self._doubtful:
            self.records = max(1, self._doubtful // 2)
        elif full or self.records < self._first_batch:
            self.records = min(self._limit, self.records * 2)
        elif records < self.records // 4:
            self.records = max(self._first_batch, self.records // 2)
        self.records = min(self.records, int(self._most))
        self._pause = _SHORTEST_PAUSE_SECONDS

    def late(self, records: int) -> None:
        """Note that Kafka did not take a batch of `records` records in time. No single record is to blame."""
        if records / 2 * self._record_bytes < _LEAST_LATE_BYTES:
            self._small_failed(records)
            return
        self._limit = min(self._limit, LARGEST_BATCH)  # larger batches would be late again and again
        self._most = max(1.0, min(self._limit, records / 2))
        self.records = min(self.records, int(self._most))

    def _small_failed(self, records: int) -> None:
        self._failures += 1
        if records <= _LEAST_BATCH < self.records:  # no more records wait, or only few can be sent at a time
            return
        if self.records < self._first_batch or self._failures > _FAILURES:
            self.records = min(self.records, records) // 2
        if self.records < _LEAST_BATCH:
            self.records, self._failures = self._first_batch, 0

    def refused(self, records: int) -> None:
        """Note that Kafka refused a batch of `records` records because of one record. When this record has been alone
        in a batch, batches grow again."""
        self._doubtful = records if records > 1 else 0
        self.records = max(1, records // 2)

    def measured(self, rows: Sequence[Row], asked: int) -> int:
        """Return the bytes of a page for which `asked` rows were requested, and adapt the size of the next page.

        In a full page only the values are counted. Reading the headers of each row would cost more than everything else
        that is done with a page here.
        """
        sampled = 0.0
        if isinstance(rows, NativeRows):
            size, self.largest = rows.summary.bytes, rows.summary.largest
        else:
            sizes = [len(row[3]) for row in rows if row[3]]
            size, self.largest = sum(sizes), max(sizes, default=0)
            if len(rows) < asked:
                size = sum(map(row_bytes, rows))
            elif rows:
                some = rows[:: max(1, len(rows) // _SAMPLE)]
                sampled = sum(map(row_bytes, some)) / len(some)
        if rows:
            self._record_bytes = max(size / len(rows), sampled)
            # More than a page takes several statements.
            most = min(self._largest_page, max(self._first_page, 2 * len(rows)))
            self.page = max(1, min(most, PAGE_BYTES * len(rows) // max(1, size)))
        return size

    def pause(self) -> float:
        """Return how long to wait before the next poll, after a poll that found nothing."""
        pause = self._pause
        growth = _PAUSE_GROWTH if pause < _LONG_PAUSE_SECONDS else _LONG_PAUSE_GROWTH
        self._pause = min(_LONGEST_PAUSE_SECONDS, pause * growth)
        return pause
