"""Metrics of every kind of process."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.catalogue import Reading
from harvest_lib.telemetry.counts import KAFKA_ERRORS, POSTGRES_CONNECTIONS
from harvest_lib.telemetry.log_counts import LogCounts


class ProcessReadings:
    """`Readings` of errors of Kafka's clients, of connections, and of warnings in the log while they are counted."""

    def __init__(self) -> None:
        self._log = LogCounts()

    def counting(self) -> AbstractContextManager[None]:
        """Count warnings for as long as the context lasts."""
        return self._log.counting()

    def readings(self) -> Iterator[Reading]:
        """Yield the present values of the metrics."""
        yield catalogue.KAFKA_ERRORS, KAFKA_ERRORS.read()
        yield catalogue.POSTGRES_CONNECTIONS, {("opened",): 0, ("failed",): 0, **POSTGRES_CONNECTIONS.read()}
        yield catalogue.LOG_EVENTS, self._log.counts.read()
