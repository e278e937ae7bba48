"""Spans of batches: an observer of a harvester's batches, used if the process has a tracer provider.

Promises
- The span of a batch lasts from the hand-over of its first record to its commit, in a separate trace. It has links to
  the recorded spans in which its records were written, MOST_LINKS at most.
- The span reads at most the first MOST_ROWS rows of a batch, so that the cost in a backlog is bounded. The span of a
  longer batch has no topic. If rows are handed over natively, reading costs almost nothing, and the span reads all
  rows.
- Records are not changed. For a malformed header `traceparent`, only the link is missing.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from harvest_lib.config import HarvestConfig
from harvest_lib.delivery import BatchCommitted, BatchFailed, BatchFenced, BatchOutcome
from harvest_lib.record import TOPIC, Row
from harvest_lib.record.rows import RowPage, sampled_traceparents
from harvest_lib.telemetry.batch_span import BatchSpan
from harvest_lib.telemetry.harmless import Harmless
from harvest_lib.telemetry.trace_context import configured_tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_log = logging.getLogger(__name__)

MOST_ROWS = 10_000
_ABANDONED = "the batch was abandoned before its end was known"


class SendSpan(BatchSpan):
    """The span of a batch that is being sent."""

    def __init__(self, tracer: "Tracer", attributes: Mapping[str, str | int]) -> None:
        super().__init__(tracer, "send", attributes)
        self._topics: set[str] = set()
        self._has_more = False  # True if the span did not read all rows of the batch

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows of the batch to the span: their number, topic and links."""
        if not rows or not self.is_recorded:
            return
        found = rows if isinstance(rows, RowPage) else rows[: max(0, MOST_ROWS - self.messages)]
        self.messages += len(rows)
        self._has_more = self._has_more or len(found) < len(rows)
        if not self._has_more and len(self._topics) <= 1:
            self._topics.update(found.summary.topics if isinstance(found, RowPage) else {row[TOPIC] for row in found})
        self.topic = next(iter(self._topics)) if len(self._topics) == 1 and not self._has_more else ""
        if found and self.room:
            self.link(sampled_traceparents(found, self.room))


class BatchTracing:
    """`BatchObserver` that makes a span for each batch."""

    def __init__(self, make_span: Callable[[], SendSpan]) -> None:
        self._make_span = make_span
        self._span: SendSpan | None = None

    def handing_over(self, rows: Sequence[Row]) -> None:
        if rows:
            self._span = self._span or self._make_span()
            self._span.add(rows)

    def committed(self, outcome: BatchOutcome, _began: float) -> None:
        match outcome:
            case BatchCommitted():
                self._end()
            case BatchFailed(reason=reason, refused=refused):
                self._end("refused" if refused else "failed", reason)
            case BatchFenced(reason=reason):
                self._end("fenced", reason)
            case other:
                assert_never(other)

    def delivered_except(self, failed: Collection[int], /) -> None:
        """Do nothing: the span of the batch has failed."""

    def abandoned(self, *, repeats: bool) -> None:  # noqa: ARG002 - the span is over either way
        self._end("abandoned", _ABANDONED)

    def _end(self, error: str = "", reason: str = "") -> None:
        span, self._span = self._span, None  # reset first: if a span processor raises, the next batch gets a new span
        if span is not None:
            span.end(error, reason)


def batch_tracing(config: HarvestConfig, shard: int) -> Sequence[BatchTracing]:
    """Return a list with the observer that makes spans for a shard's batches. Without a tracer provider, return an
    empty list."""
    tracer = None
    with Harmless(_log, "tracing_unavailable"):
        tracer = configured_tracer()
    if tracer is None:
        return []
    attributes = _attributes(config, shard)
    return [BatchTracing(lambda: SendSpan(tracer, attributes))]


def _attributes(config: HarvestConfig, shard: int) -> Mapping[str, str | int]:
    return {
        "harvest.outbox": config.outbox_table,
        "harvest.subscription": config.subscription,
        "harvest.shard": shard,
        "harvest.delivery": config.delivery,
    }
