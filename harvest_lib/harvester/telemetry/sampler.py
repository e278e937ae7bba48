"""Samples Postgres for metrics, on a separate thread and connection.

Promises
- Postgres is queried for a sample only when `seen` is called, at most once a second for any number of callers. During
  delivery, it is also queried for the age of a single record each second. A listener calls `seen` every five seconds.
- A caller waits at most until a second after the query was sent. So if Postgres hangs, only the first caller waits.
  Callers then get no sample, but a text with the reason: Postgres does not answer.
- No statement runs for longer than a few seconds.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import HarvestError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.observers.measures import LatencySample
from harvest_lib.harvester.telemetry.outbox_sample import OutboxSample, RareSample, SampleReader
from harvest_lib.postgres.database import connect
from harvest_lib.postgres.translation import evidence_of
from harvest_lib.process import threads
from harvest_lib.subscriptions.shards import SubscriptionShard
from harvest_lib.telemetry.counts import Labels
from harvest_lib.telemetry.health import ProgressWatch

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
_RARE_EVERY_SECONDS = 60.0
_WAIT_SECONDS = 1.0
_UNUSED_SECONDS = 60.0
"""The connection is closed if `seen` is not called for this time and no record waits for its age."""
SETTINGS = """
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET jit = off;
SET statement_timeout = '5s'
"""
"""Settings with which statements walk indexes in index order, as sources do: a sort or a bitmap scan reads all rows."""
_MOST_SAMPLES = 16
"""Maximum number of queued records for the latency. If Postgres does not answer, further records are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestSample:
    """The latest result of the sampler. If Postgres does not answer, `sample` is None, and `reason` is the reason.
    `stalled_seconds` is the time since the last known progress of the backlog."""

    sample: OutboxSample | None = None
    at: float = 0.0
    rare: RareSample = field(default_factory=RareSample)
    stalled_seconds: float = 0.0
    checkpoint_ages: Mapping[Labels, float] = field(default_factory=dict)
    reason: str = "Postgres has not answered yet"


class CheckpointAges:
    """The ages of the checkpoints in Postgres, tracked over several samples. A new term also updates a shard's row, but
    without a new checkpoint, so the time of the row alone does not suffice. A single thread uses it."""

    def __init__(self) -> None:
        self._seen: dict[Labels, tuple[tuple[int, int], datetime]] = {}

    def of(self, shards: Sequence[SubscriptionShard]) -> Mapping[Labels, float]:
        """Return the age of each checkpoint in seconds, measured by the database's clock. The labels are subscription
        and shard. If a row was updated since the last sample without a new checkpoint, the earlier time counts. Shards
        without a checkpoint are left out."""
        before, self._seen = self._seen, {}
        ages: dict[Labels, float] = {}
        for shard in shards:
            if shard.checkpoint is None:
                continue
            place, kept = (shard.name, str(shard.shard)), (shard.generation, shard.checkpoint.number)
            earlier, written_at = before.get(place, (None, shard.updated_at))
            self._seen[place] = kept, written_at if earlier == kept else shard.updated_at
            ages[place] = shard.updated_seconds_ago + (shard.updated_at - self._seen[place][1]).total_seconds()
        return ages


class Sampler:
    """The thread that samples Postgres for a harvester. Any thread may call `seen`."""

    def __init__(self, harvest: Harvest) -> None:
        self._harvest = harvest
        self._samples: SimpleQueue[LatencySample | None] = SimpleQueue()  # None: a caller waits, or `stop` was called
        self._changed = threading.Condition()
        self._latest = LatestSample()
        self._asked_at = self._answered_at = float("-inf")
        self._good_at = boot_seconds()  # time of the last successful sample; before the first sample, of the start
        self._stopping = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
        self._reader: SampleReader | None = None
        self._rare = RareSample()
        self._rare_at = float("-inf")
        self._watch, self._ages = ProgressWatch(), CheckpointAges()
        harvest.measures.samples = self._samples
        self._thread = threads.repeat(
            "harvest-sampler", self._serve, stopping=self._stopping, pause_seconds=lambda: 0.0, on_error=self._troubled
        )

    def seen(self) -> LatestSample:
        """Return the latest sample. If it is older than a second, query Postgres and wait, for a second at most."""
        with self._changed:
            now = boot_seconds()
            if now - self._answered_at < _EVERY_SECONDS:
                return self._latest
            if self._asked_at <= self._answered_at:
                self._asked_at = now
                self._samples.put(None)
            asked = self._asked_at
            if self._changed.wait_for(lambda: self._answered_at >= asked, max(0.0, asked + _WAIT_SECONDS - now)):
                return self._latest
        return self._unknown("Postgres does not answer in time")

    def stop(self) -> None:
        """End the thread. Do not wait longer than a second, as the server may be unavailable. Safe to repeat."""
        self._harvest.measures.samples = None
        self._stopping.set()
        self._samples.put(None)
        self._thread.join(_WAIT_SECONDS)
        if not self._thread.is_alive():
            self._disconnect()

    # -- the thread

    def _serve(self) -> None:
        try:
            wanted = self._samples.get(timeout=_UNUSED_SECONDS)
        except Empty:
            self._disconnect()
            return
        if self._stopping.is_set():
            self._disconnect()
        elif wanted is None:
            self._answer()
        elif self._samples.qsize() < _MOST_SAMPLES:
            self._age(wanted)

    def _troubled(self, error: BaseException) -> None:
        """Handle an error of any kind: log it, and publish a result without a sample, so that missing numbers do not
        look like zeros."""
        try:
            _log.exception("sampling_failed", exc_info=error)
        finally:
            self._failed("see the log: sampling_failed")

    def _answer(self) -> None:
        try:
            reader = self._connected()
            sample = reader.sample()
        except (HarvestError, psycopg.Error) as error:
            self._failed(error.evidence or error.cause if isinstance(error, HarvestError) else evidence_of(error))
            return
        now = boot_seconds()
        self._watch.observe(
            now,
            (sample.mark, self._harvest.measures.delivered.total),
            waits=bool(sample.records),
            age_seconds=sample.age_seconds,
            quiet_seconds=sample.quiet_seconds,
        )
        self._good_at = now
        seen = LatestSample(
            sample=sample,
            at=now,
            rare=self._rare,
            stalled_seconds=self._watch.stalled_seconds,
            checkpoint_ages=self._ages.of(sample.shards),
            reason="",
        )
        if now - self._rare_at < _RARE_EVERY_SECONDS:
            self._publish(seen)
            return
        if self._rare_at > float("-inf"):  # only the first time, callers wait for the slow part of the sample
            self._publish(seen)
        self._rare_at, self._rare = now, RareSample()
        try:
            self._rare = reader.rare()
        except (HarvestError, psycopg.Error) as error:
            _log.debug("slow_numbers_unknown", extra={"reason": type(error).__name__})
            self._disconnect()
        self._publish(replace(seen, rare=self._rare))

    def _age(self, sample: LatencySample) -> None:
        try:
            age = self._connected().age_of(sample.record_id)
        except (HarvestError, psycopg.Error):
            self._disconnect()  # the next call of `seen` reports the reason
            return
        if age is not None:
            sample.aged(age, boot_seconds())

    def _failed(self, reason: str) -> None:
        self._disconnect()
        self._publish(self._unknown(reason))

    def _unknown(self, reason: str) -> LatestSample:
        """Return a result without a sample. The time since the last sample counts as stalled time."""
        return LatestSample(reason=reason, stalled_seconds=self._watch.stalled_seconds + boot_seconds() - self._good_at)

    def _publish(self, seen: LatestSample) -> None:
        with self._changed:
            self._latest, self._answered_at = seen, boot_seconds()
            self._changed.notify_all()

    def _connected(self) -> SampleReader:
        if self._reader is None:
            config = self._harvest.config
            conninfo = make_conninfo(config.data_source.conninfo(), application_name="harvest telemetry")
            self._connection = connect(conninfo)
            self._connection.execute(SETTINGS)
            self._reader = SampleReader(self._connection, config)
        return self._reader

    def _disconnect(self) -> None:
        connection, self._connection, self._reader = self._connection, None, None
        if connection is not None:
            connection.close()
