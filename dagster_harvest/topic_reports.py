"""The events of an outbox's topics: materializations with delivered records, and observations of numbers.

Promises
- A materialization has the numbers of its topic alone. It is written only if records were delivered to the topic since
  its last materialization, at most every `daemon.materialize_every_seconds`, and at the end of a run.
- The sum of `dagster/row_count` over the materializations of a run is the number of records that the run delivered. A
  run that is killed loses the count of the records since its last materialization, but not their offsets: the next
  range includes them.
- An observation is written only if a number of the topic or the leader has changed, or every 15 minutes.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import dagster as dg
from confluent_kafka import KafkaException

from dagster_harvest.numbers import IDLE_SECONDS, Numbers
from dagster_harvest.settings import OutboxSettings
from dagster_harvest.topic_ends import OFFSETS, Ends, ends_of, ranges, read_ends
from dagster_harvest.topic_ledger import TopicLedger
from harvest_lib.config import HarvestConfig
from harvest_lib.errors import HarvestError
from harvest_lib.harvester.observers.topic_counts import TopicCounts
from harvest_lib.harvester.watermark import DeliveryProgress

_log = logging.getLogger(__name__)

ROW_COUNT = "dagster/row_count"
DELIVERED_UNTIL = "delivered_until"
"""The key of the time before which every committed record of the outbox is delivered."""
OUTBOX = "outbox"
_RECENT = 5


def delivered_metadata(
    settings: OutboxSettings,
    records: int | None,
    offsets: Mapping[str, Sequence[int]],
    progress: DeliveryProgress | None,
) -> dict[str, Any]:
    """Return the metadata of a materialization. `records` is None if the number is unknown, as outside Dagster."""
    shown: dict[str, Any] = {OUTBOX: settings.name}
    if records is not None:
        shown[ROW_COUNT] = records
    if offsets:
        shown[OFFSETS] = dg.MetadataValue.json({number: list(each) for number, each in offsets.items()})
    return shown | (progress_metadata(progress) if progress is not None else {})


def progress_metadata(progress: DeliveryProgress) -> dict[str, Any]:
    """Return the progress of the outbox as metadata: its backlog, its position and `delivered_until`."""
    shown: dict[str, Any] = {
        "backlog_records": progress.waiting.records,
        "backlog_age_seconds": round(progress.waiting.age_seconds, 3),
    }
    position = [
        {
            "shard": each.shard,
            "generation": each.generation,
            "checkpoint": each.checkpoint.number,
            "delivered": each.checkpoint.delivered,
            "low_watermark": each.low_watermark,
        }
        for each in progress.shards
        if each.checkpoint is not None
    ]
    if position:
        shown["outbox_position"] = dg.MetadataValue.json(position)
    if progress.delivered_until is not None:
        shown[DELIVERED_UNTIL] = dg.MetadataValue.timestamp(progress.delivered_until)
    return shown


class TopicReports:
    """The events of the topics in a run. `guard` returns a context that suppresses the errors of Dagster's storage."""

    def __init__(
        self,
        context: dg.OpExecutionContext,
        settings: OutboxSettings,
        config: HarvestConfig,
        counts: TopicCounts,
        guard: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._context = context
        self._settings = settings
        self._config = config
        self._counts = counts
        self._guard = guard
        self._keys = dict(zip(settings.topics, settings.topic_keys, strict=True))
        daemon = settings.daemon
        self._ledger = TopicLedger(
            settings.topics,
            every_seconds=daemon.materialize_every_seconds,
            gather_seconds=daemon.report_every_seconds,
        )
        self._observed: dict[str, _Observed] = {}
        self._reported: dict[str, int] = {}  # the total of each topic in the last report
        self._reported_at = time.monotonic()
        self._has_looked_back = False
        self._doubts: dict[str, float] = {}  # topic -> time of a materialization that may be written
        self.progress: DeliveryProgress | None = None
        """The last reading of the outbox."""

    def materialize(self, now: float | None = None) -> None:
        """Materialize the topics that are due. `now` is in Unix seconds."""
        now = time.time() if now is None else now
        self._ledger.count(self._counts.read(), now)
        if (due := self._ledger.due(now)) and not self._has_looked_back:
            self._look_back()
            due = self._ledger.due(now)
        self._write(due, now)

    def finish(self) -> None:
        """Materialize every topic with pending records, at the end of the run."""
        now = time.time()
        self._ledger.count(self._counts.read(), now)
        self._write(self._ledger.unfinished, now)

    def observe(self, numbers: Numbers) -> None:
        """Observe each topic with a changed number."""
        seconds, self._reported_at = numbers.at - self._reported_at, numbers.at
        for topic, key in self._keys.items():
            total = self._ledger.total(topic)
            before, self._reported[topic] = self._reported.get(topic, 0), total
            found = _Observed(numbers.at, total, (total - before) / seconds, numbers.leader_id)
            if not found.is_news_after(self._observed.get(topic)):
                continue
            metadata = {OUTBOX: self._settings.name, **numbers.metadata(delivered=found.total, rate=found.rate)}
            metadata |= progress_metadata(self.progress) if self.progress is not None else {}
            with self._guard():
                self._context.log_event(dg.AssetObservation(asset_key=key, metadata=metadata))
            self._observed[topic] = found

    def _write(self, topics: Sequence[str], now: float) -> None:
        if not topics:
            return
        ends = self._ends(topics)
        for topic in topics:
            written = 0
            with self._guard():
                recent = self._recent(topic)
                self._settle(topic, recent)
                if not (records := self._ledger.pending(topic)):
                    continue
                before = next((found for each in recent if (found := ends_of(_metadata(each)))), {})
                offsets = ranges(before, ends.get(topic, {}))
                metadata = delivered_metadata(self._settings, records, offsets, self.progress)
                self._doubts[topic] = time.time()
                self._context.log_event(dg.AssetMaterialization(asset_key=self._keys[topic], metadata=metadata))
                del self._doubts[topic]
                written = records
            self._ledger.materialized(topic, written, now)

    def _ends(self, topics: Sequence[str]) -> Mapping[str, Ends]:
        try:
            return read_ends(self._config, topics)
        except (HarvestError, KafkaException) as error:  # the number of records is known, their offsets are not
            _log.warning("offsets_not_read", extra={"reason": str(error)})
            return {}

    def _recent(self, topic: str) -> Sequence[dg.EventLogRecord]:
        """Return the topic's last materializations, newest first. Another run, another outbox or a user may have
        written some."""
        return self._context.instance.fetch_materializations(self._keys[topic], limit=_RECENT).records

    def _settle(self, topic: str, recent: Sequence[dg.EventLogRecord]) -> None:
        """If an error or an interrupt left in doubt whether this run has written a materialization, count its records
        if the materialization is there."""
        begun = self._doubts.pop(topic, math.inf)
        for each in recent:
            if each.run_id == self._context.run_id and each.timestamp >= begun:
                self._ledger.materialized(topic, int(_metadata(each)[ROW_COUNT].value), each.timestamp)

    def _look_back(self) -> None:
        """Read when an earlier run of this outbox materialized the topics."""
        with self._guard():
            for topic in self._keys:
                outbox = dg.MetadataValue.text(self._settings.name)
                ours = [each.timestamp for each in self._recent(topic) if _metadata(each).get(OUTBOX) == outbox]
                if ours:
                    self._ledger.begin_after(topic, ours[0])
        self._has_looked_back = True


def _metadata(record: dg.EventLogRecord) -> Mapping[str, Any]:
    found = record.asset_materialization
    return found.metadata if found is not None else {}


class _Observed(NamedTuple):
    """The numbers of a topic in an observation. `at` is in seconds of the monotonic clock."""

    at: float
    total: int
    rate: float
    leader_id: str | None

    def is_news_after(self, before: "_Observed | None") -> bool:
        """Return True if a number or the leader has changed, or if the last observation is old."""
        if before is None or self.at - before.at >= IDLE_SECONDS:
            return True
        return (self.total, self.rate, self.leader_id) != (before.total, before.rate, before.leader_id)
