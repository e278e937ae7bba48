"""The events of topics whose harvester runs outside Dagster. The supervisor's ticks find new records by the ends of the
topics' partitions.

Promises
- A topic is materialized if its ends have moved, at most every `daemon.materialize_every_seconds`. The first tick only
  notes the ends.
- A topic is observed if the leader has changed, or every 15 minutes.
- The state is in the cursor of the supervisor. A tick that is repeated after a crash repeats its events, with the same
  offsets.
- The number of records is unknown, because offsets include records of other producers, and markers of transactions.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import psycopg
from confluent_kafka import IsolationLevel, KafkaException

from dagster_harvest.numbers import IDLE_SECONDS
from dagster_harvest.settings import OutboxSettings
from dagster_harvest.topic_ends import passed, ranges, read_ends
from dagster_harvest.topic_reports import OUTBOX, delivered_metadata, progress_metadata
from harvest_lib.config import HarvestConfig
from harvest_lib.errors import HarvestError
from harvest_lib.harvester.watermark import DeliveryProgress, Watermark, WatermarkSample


class OutsideTopics:
    """The events of a tick. `before` is the state of the last tick; `state` is the state after this tick, as JSON."""

    def __init__(self, settings: OutboxSettings, before: Mapping[str, Any], now: float) -> None:
        self._settings = settings
        self._now = now
        self._watermark = Watermark([WatermarkSample(*each) for each in before.get("samples", ())])
        self.state: dict[str, Any] = {"ends": {}, **before}

    def read(self, connection: "psycopg.Connection[Any]", config: HarvestConfig) -> DeliveryProgress:
        """Read the progress of the outbox. Raises HarvestError."""
        progress = self._watermark.read(connection, config)
        self.state["samples"] = [list(each) for each in self._watermark.samples]
        return progress

    def events(
        self, config: HarvestConfig, progress: DeliveryProgress, leader: str | None
    ) -> list[dg.AssetObservation | dg.AssetMaterialization]:
        """Return the events of the topics that have news."""
        keys = dict(zip(self._settings.topics, self._settings.topic_keys, strict=True))
        events: list[dg.AssetObservation | dg.AssetMaterialization] = []
        if self._is_observed(leader):
            shown = progress_metadata(progress) | {OUTBOX: self._settings.name, "leader": leader or "nobody"}
            if progress.waiting.epoch is not None:
                shown["epoch"] = progress.waiting.epoch
            events += [dg.AssetObservation(asset_key=key, metadata=shown) for key in keys.values()]
        due = [topic for topic in keys if self._is_due(topic)]
        try:
            found = read_ends(config, due, IsolationLevel.READ_COMMITTED) if due else {}
        except (HarvestError, KafkaException):  # the next tick reads them
            return events
        for topic, ends in found.items():
            before = self.state["ends"].get(topic)
            offsets = ranges(before["ends"] if before else {}, ends)
            kept = {number: end for number, (_, end) in offsets.items()}
            is_moved = before is not None and passed(offsets) > 0
            at = self._now if is_moved else before["at"] if before else 0.0
            self.state["ends"] |= {topic: {"at": at, "ends": kept}}
            if is_moved:
                metadata = delivered_metadata(self._settings, None, offsets, progress)
                events.append(dg.AssetMaterialization(asset_key=keys[topic], metadata=metadata))
        return events

    def _is_observed(self, leader: str | None) -> bool:
        at, before = self.state.get("observed", (0.0, None))
        if leader == before and 0 <= self._now - at < IDLE_SECONDS:
            return False
        self.state["observed"] = [self._now, leader]
        return True

    def _is_due(self, topic: str) -> bool:
        before = self.state["ends"].get(topic)
        every = self._settings.daemon.materialize_every_seconds
        return before is None or not 0 <= self._now - before["at"] < every
