"""The mark source in batches: pages of a table whose rows a leader marks and purges.

    mark ─► send ─► commit (exactly once with the ids of its records) ─► purge those ids, with the next mark

Promises
- Exactly once: the position lists the ids of all sent records that may still be in the table, `MOST_IDS` at most. A
  leader that continues from the position purges these ids first. So after a crash between a commit and the purge, no
  record is sent twice. The `deferred` ids of the position are not purged.
- At least once: at the end of a leader's term, rows that are marked and not delivered are unmarked, since goharvest may
  be the next leader. A fenced leader does not unmark them.
- While the source stays open, it does not return a record twice, even if another leader marks the record in the
  meantime. A parked record that is retried is returned again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import accumulate
from uuid import uuid4

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import DatabaseError, DatabaseUnavailable, OutboxTableError
from harvest_lib.record import PAGE_BYTES, Row, row_bytes
from harvest_lib.record.checkpoint import Position
from harvest_lib.record.rows import ids_of
from harvest_lib.source.batch_protocol import Page
from harvest_lib.source.claim_protocol import ClaimedRows, ClaimSource
from harvest_lib.source.thread import CallThread

NAME = "mark"

MOST_IDS = 24_000
"""Maximum number of ids in a position. As they are encoded as differences, they take 256 kB at most, and much less if
the ids are dense."""

_BATCH_IDS = MOST_IDS // 3
"""Maximum number of ids in a batch. It is a third of `MOST_IDS`, since the ids of two earlier batches may still await
their purge."""

_LAST_ANSWER_SECONDS = 5.0
"""Longest wait for the database when the source closes or releases rows. After this time, only the source's own thread
waits for the statement."""


class MarkPages:
    """`BatchSource` over a table whose rows a leader marks and purges. Each `open` takes a new leader id.

    While the caller delivers a page, a thread marks the next page. The transaction of this mark also purges the records
    that were committed to Kafka before the transaction began.
    """

    def __init__(
        self,
        source: ClaimSource,
        backoff_seconds: float = 0.0,
        *,
        names_ids: bool = True,
        may_mark: Callable[[], bool] = lambda: True,
        may_purge: Callable[[], bool] = lambda: True,
    ) -> None:
        """`backoff_seconds`: pause after a mark that found no rows. `names_ids`: positions list the ids of delivered
        rows; if False, the caller purges delivered rows before it uses a position. `may_mark` and `may_purge` are
        called just before a statement, and return True if the statement may run. Without them, a process that is frozen
        at that point would take its successor's rows when it resumes."""
        self._may_mark, self._may_purge = may_mark, may_purge
        self._names_ids = names_ids
        self._source = source
        self._backoff_seconds = backoff_seconds
        self._mark_at = 0.0  # boot seconds
        self._thread: CallThread[ClaimSource] | None = None
        self._pending: Future[ClaimedRows] | None = None
        self._closed: Future[None] | None = None  # done when no call on the source is running any more
        self._limit = 0
        self._held: dict[int, None] = {}  # ids of read records that Kafka has not confirmed
        self._left: set[int] = set()  # ids of marked rows that were held before the last `open`, and not read since
        self._batch: list[int] = []  # held ids that were sent in this batch
        self._delivered: list[int] = []  # ids of earlier batches, not purged yet
        self._purging: list[int] = []  # delivered ids that the pending statement purges
        self._server: Mapping[str, str] = {}  # WAL location after the commits of all read records
        self._gone: set[int] = set()  # ids that the pending mark may return, but that were removed after it began
        self.parked: Mapping[tuple[str, str], int] = {}
        """The lowest parked id of each (topic, key) in the last page that has parked records."""

    def open(self, position: Position | None) -> Position:
        self.await_closed()
        self._quiet()
        self._thread = self._thread or CallThread(self._source, "harvest-mark")
        self._source.open(uuid4())
        self._batch, self._purging, self._gone = [], [], set()
        self._server = (position or {}).get("server", {})
        if ids := [*self._delivered, *(_delivered(position) if position is not None else [])]:
            self._fetch(self._source, 0, ids)
            self._delivered = []
        return self.position()

    def read(self, limit: int) -> Page | None:
        if self._pending is None and boot_seconds() < self._mark_at:
            return None
        while True:
            claimed, rows, ids = self._claim(limit)
            if rows or not claimed.more:
                break
        if not rows:
            return None
        self._held.update(dict.fromkeys(ids))
        self._server = claimed.server or self._server
        if self._left:
            self._left.difference_update(ids)
        if claimed.more and not (len(rows) == 1 and row_bytes(rows[0]) > PAGE_BYTES):
            self._request(limit)
        return Page(rows, self.position(), more=claimed.more and len(self._held) < _BATCH_IDS)

    def _claim(self, limit: int) -> tuple[ClaimedRows, Sequence[Row], Sequence[int]]:
        """Return three values: the result of the next mark, its rows that this source does not hold already, and the
        ids of these rows."""
        claimed = self._next(limit)
        self.parked = claimed.parked
        if not claimed.rows:
            self._mark_at = boot_seconds() + self._backoff_seconds
        # A fenced leader may have marked rows that this source had marked and sent; this source then marks them again.
        rows, ids = claimed.rows, ids_of(claimed.rows)
        gone = {*self._delivered, *self._gone}
        if not (self._held.keys().isdisjoint(ids) and gone.isdisjoint(ids)):
            known = {*self._held, *gone}
            rows = [row for row in rows if row[0] not in known]
            ids = ids_of(rows)
        self._gone.clear()
        return claimed, rows, ids

    def load(self, ids: Sequence[int]) -> list[Row]:  # noqa: ARG002 - nothing is parked by its id alone
        return []

    def park(self, refused: Mapping[int, str], behind: Sequence[int]) -> frozenset[int]:
        """Move records to the table of parked records: see `ClaimSource.park`. Later positions omit their ids."""
        assert self._thread is not None  # noqa: S101 - made by `open`
        released = self._thread.submit(lambda source: source.park(refused, behind)).result()
        for each in {*refused, *behind} - released:
            self._held.pop(each, None)
        self._note_gone({*refused, *behind} - released)
        return released

    def sent(self, rows: Sequence[Row]) -> None:
        self._batch += ids_of(rows)

    def committed(self, failed: Collection[int] = ()) -> None:
        kept = frozenset(failed)
        delivered = [each for each in self._batch if each not in kept] if failed else self._batch
        for each in delivered:
            self._held.pop(each, None)
        self._delivered += delivered
        self._batch = []

    def purge(self) -> None:
        """Purge the delivered rows, in the transaction of the next mark if a mark is due. The purge is durable when
        this returns."""
        if self._thread is None or not self._delivered:
            return
        if self._pending is None and boot_seconds() >= self._mark_at:
            self._request(self._limit)
        if self._pending is not None:
            self._pending.result()
        purged = set(self._purging)
        if ids := [each for each in self._delivered if each not in purged]:
            self._thread.submit(lambda source: self._fetch(source, 0, ids)).result()
            self._delivered = [each for each in self._delivered if each in purged]
            self._note_gone(ids)

    def _note_gone(self, ids: Iterable[int]) -> None:
        """Leave `ids` out of the next page. The pending mark may return them, if another leader had unmarked the
        rows."""
        if self._pending is not None:
            self._gone.update(ids)

    def give_back(self) -> None:
        """See `BatchSource`. First purges delivered rows whose purge failed because its connection was lost."""
        if self._names_ids or (self._closed is not None and not self._closed.done()):
            # With `names_ids`, a successor could not distinguish unmarked rows from rows to purge. Without `names_ids`,
            # the database does not answer.
            return
        self._thread = self._thread or CallThread(self._source, "harvest-mark")
        with suppress(TimeoutError):
            self._thread.submit(self._give_back).result(_LAST_ANSWER_SECONDS)

    def _give_back(self, source: ClaimSource) -> None:
        self._quiet()
        if not (self._left or self._delivered):
            return
        try:
            self._purge_and_reset(source)
        except DatabaseUnavailable:
            source.open(uuid4())
            self._purge_and_reset(source)

    def _purge_and_reset(self, source: ClaimSource) -> None:
        if self._delivered:
            self._fetch(source, 0, self._delivered)
            self._left.difference_update(self._delivered)
            self._delivered = []
        source.reset(sorted(self._left))
        self._left.clear()

    def retention_bounds(self, position: Position) -> tuple[str, int | None]:  # noqa: ARG002 - delivered rows are not kept
        return "1:1:", None

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._closed = thread.submit(self._close)
        thread.end(0)
        with suppress(TimeoutError):
            self._closed.result(_LAST_ANSWER_SECONDS)

    def _close(self, source: ClaimSource) -> None:
        if self._delivered:
            # If this purge fails, the next `open` purges the rows. Another process that leads next may resend them.
            with suppress(DatabaseError, OutboxTableError):
                self._fetch(source, 0, self._delivered)
                self._delivered = []
        source.close()

    def await_closed(self) -> None:
        """Wait until the calls made before `close` have ended, because two threads must not use the source at once."""
        if self._closed is not None:
            self._closed.result()
            self._closed = None

    def _next(self, limit: int) -> ClaimedRows:
        self._limit = limit
        if self._pending is None:
            self._request(limit)
        assert self._pending is not None  # noqa: S101 - requested just now
        answer, self._pending = self._pending, None
        claimed = answer.result()
        self._forget_purged()
        return claimed

    def _forget_purged(self) -> None:
        purged, self._purging = set(self._purging), []
        self._delivered = [each for each in self._delivered if each not in purged]

    def _request(self, limit: int) -> None:
        assert self._thread is not None  # noqa: S101 - made by `open`
        self._purging = purging = list(self._delivered)
        limit = min(limit, _BATCH_IDS // 2)
        self._pending = self._thread.submit(lambda source: self._fetch(source, limit, purging))

    def _fetch(self, source: ClaimSource, limit: int, delivered: Sequence[int]) -> ClaimedRows:
        return source.fetch(limit if self._may_mark() else 0, delivered if self._may_purge() else [])

    def _quiet(self) -> None:
        """Wait for the pending mark, then count its rows and the held rows as left behind, because no later call uses
        the leader id of their marks. Errors are ignored: the next read finds out whether the table is missing, or only
        hidden for a while."""
        pending, self._pending = self._pending, None
        if pending is not None:
            with suppress(DatabaseError, OutboxTableError):
                self._left.update(ids_of(pending.result().rows))
                self._forget_purged()
        self._left.update(self._held)
        self._held = {}

    def position(self) -> Position:
        """Return the position after the rows read so far."""
        if not self._names_ids:
            return {"source": NAME, "ids": ""}
        ids = encode_ids([*self._delivered, *self._held])
        return {"source": NAME, "ids": ids, **({"server": self._server} if self._server else {})}


def _delivered(position: Position) -> list[int]:
    """Return the delivered ids of a position: all ids except the deferred ids, which are still to be sent."""
    deferred = set(position.get("deferred", ()))
    return [each for each in decode_ids(position["ids"]) if each not in deferred]


def encode_ids(ids: Sequence[int]) -> str:
    """Encode ids as differences: 17, 18, 19, 24 become `17 1 1 5`. The ids need not ascend."""
    return " ".join(str(each - before) for before, each in zip((0, *ids), ids, strict=False))


def decode_ids(text: str) -> list[int]:
    """Decode the text that `encode_ids` returns."""
    return list(accumulate(map(int, text.split())))
