"""Metrics and health of a harvester, for `harvest_lib.telemetry.server.Listener` or for your own registry."""

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from harvest_lib import __version__
from harvest_lib.clock import boot_seconds
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.housekeeping.added_partitions import Added
from harvest_lib.harvester.observers.measures import END_REASONS, OUTCOMES
from harvest_lib.harvester.telemetry.health import HarvestHealth
from harvest_lib.harvester.telemetry.outbox_sample import MOST_TOPICS
from harvest_lib.harvester.telemetry.sampler import LatestSample, Sampler
from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.catalogue import Metric, Reading
from harvest_lib.telemetry.counts import Counts, Histogram, HistogramReading, Labels


class HarvestTelemetry(HarvestHealth):
    """Metrics and health of a harvester. Make it before the harvester starts. As a context manager, it ends its thread
    on exit."""

    def __init__(self, harvest: Harvest) -> None:
        self._harvest = harvest
        self._sampler = Sampler(harvest)
        super().__init__(harvest, self._sampler)

    @property
    def histograms(self) -> Mapping[Metric, Histogram]:
        """The histograms by their metrics. The loops of the shards fill the histograms."""
        measures = self._harvest.measures
        return {
            catalogue.BATCH_SECONDS: measures.batch_seconds,
            catalogue.COMMIT_SECONDS: measures.commit_seconds,
            catalogue.LATENCY_SECONDS: measures.latency_seconds,
        }

    def readings(self) -> Iterator[Reading]:
        """Yield the current values of all metrics. Waits for Postgres for a second at most."""
        harvest, measures = self._harvest, self._harvest.measures
        shards = [(str(shard),) for shard in range(harvest.config.shards)]
        led = harvest.led_shards
        yield catalogue.INFO, {self._info(): 1.0}
        yield catalogue.LEADER, {(str(shard),): float(shard in led) for shard in range(harvest.config.shards)}
        yield catalogue.READY, {(): float(self.ready().is_healthy)}
        for metric, counts in (
            (catalogue.TERMS, measures.terms),
            (catalogue.TERM_REFRESHES, measures.refreshes),
            (catalogue.DELIVERED, measures.delivered),
            (catalogue.POSSIBLE_DUPLICATES, measures.possible_duplicates),
        ):
            yield metric, _from_zero(counts, shards)
        yield catalogue.TERMS_ENDED, _from_zero(measures.terms_ended, _each(shards, END_REASONS))
        yield catalogue.BATCHES, _from_zero(measures.batches, _each(shards, OUTCOMES))
        yield catalogue.IN_FLIGHT, {(): float(harvest.in_flight_records)}
        for metric, histogram in self.histograms.items():
            yield metric, _from_empty(histogram, shards)
        yield (
            catalogue.CERTIFICATE_EXPIRY,
            {(setting,): at for setting, at in harvest.certificates.expiries().items()},
        )
        seen = self._sampler.seen()
        yield catalogue.PARTITIONS_ADDED, _noticed([*harvest.added_partitions, *seen.rare.added])
        limit = harvest.config.database_limit_bytes
        yield catalogue.DATABASE_LIMIT, {(): float(limit)} if limit is not None else {}
        yield from _of_the_outbox(seen)

    def stop(self) -> None:
        """End the thread that samples Postgres. Safe to repeat."""
        self._sampler.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _info(self) -> Labels:
        config = self._harvest.config
        chosen = (config.leadership, config.source, config.delivery, self._harvest.hand_over)
        return (__version__, config.name, config.outbox_table, config.subscription, *chosen)


def _of_the_outbox(seen: LatestSample) -> Iterator[Reading]:
    sample = seen.sample
    yield catalogue.POSTGRES_UP, {(): float(sample is not None)}
    if sample is None:
        return
    yield catalogue.SAMPLE_AGE, {(): boot_seconds() - seen.at}
    if sample.records is not None:
        yield catalogue.BACKLOG_RECORDS, {(): float(sample.records)}
        yield catalogue.BACKLOG_IS_ESTIMATE, {(): float(sample.is_estimate)}
        yield catalogue.STALLED, {(): seen.stalled_seconds}
    if sample.age_seconds is not None:
        yield catalogue.BACKLOG_AGE, {(): sample.age_seconds}
    yield catalogue.PARKED, {label: float(count) for label, count in sample.parked.items()}
    labelled = [((each.name, str(each.shard)), each) for each in sample.shards]
    yield catalogue.EPOCH, {label: float(each.epoch) for label, each in labelled}
    kept = [(label, each.checkpoint) for label, each in labelled]
    yield (
        catalogue.SUBSCRIPTION_DELIVERED,
        {label: float(checkpoint.delivered) for label, checkpoint in kept if checkpoint is not None},
    )
    yield catalogue.CHECKPOINT_AGE, seen.checkpoint_ages
    rare = seen.rare
    yield catalogue.SEGMENTS_HELD, {(name,): float(held.segments) for name, held in rare.held.items()}
    yield catalogue.SEGMENTS_HELD_BYTES, {(name,): float(held.bytes) for name, held in rare.held.items()}
    if rare.sizes is not None:
        yield catalogue.OUTBOX_BYTES, {(): float(rare.sizes.outbox)}
        if rare.sizes.database is not None:
            yield catalogue.DATABASE_BYTES, {(): float(rare.sizes.database)}


def _noticed(added: Sequence[Added]) -> Mapping[Labels, float]:
    """Return when added partitions were detected, for the `MOST_TOPICS` topics with the latest detections."""
    newest = sorted(added, key=lambda each: each.noticed_at)[-MOST_TOPICS:]
    return {(each.topic,): each.noticed_at.timestamp() for each in newest}


def _each(shards: list[tuple[str]], seconds: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(shard, second) for (shard,) in shards for second in seconds]


def _from_zero(
    counts: Counts, expected: Iterator[Labels] | list[tuple[str]] | list[tuple[str, str]]
) -> Mapping[Labels, float]:
    """Return the counts, and 0 for expected labels without a count, because rates need counts that begin at 0."""
    return {**dict.fromkeys(expected, 0), **counts.read()}


def _from_empty(histogram: Histogram, expected: list[tuple[str]]) -> Mapping[Labels, HistogramReading]:
    return {**{labels: histogram.empty() for labels in expected}, **histogram.read()}
