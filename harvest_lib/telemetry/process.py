"""Metrics of every kind of process."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.catalogue import Reading
from harvest_lib.telemetry.counts import KAFKA_ERRORS, POSTGRES_CONNECTIONS
from harvest_lib.telemetry.log_counts import LogCounts


class ProcessReadings:
    """Source of the metrics of every process: errors of Kafka's clients, connections to Postgres, and logged warnings.
    Warnings are only counted inside `counting`."""

    def __init__(self) -> None:
        self._log = LogCounts()

    def counting(self) -> AbstractContextManager[None]:
        """Count logged warnings while the context is active."""
        return self._log.counting()

    def readings(self) -> Iterator[Reading]:
        """Yield the metrics with their current values."""
        yield catalogue.KAFKA_ERRORS, KAFKA_ERRORS.read()
        yield catalogue.POSTGRES_CONNECTIONS, {("opened",): 0, ("failed",): 0, **POSTGRES_CONNECTIONS.read()}
        yield catalogue.LOG_EVENTS, self._log.counts.read()
