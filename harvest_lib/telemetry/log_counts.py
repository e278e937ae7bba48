"""Counts events that are logged at level warning or higher, by the event's name."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from harvest_lib.telemetry.counts import Counts

_LOGGERS = ("harvest_lib", "dagster_harvest")
_CLIENT = "harvest_lib.librdkafka"
"""Logger of librdkafka's messages. They are not counted here: errors of librdkafka are counted by their kind."""
_EVENT = re.compile(r"[a-z][a-z_]{1,60}")


class LogCounts(logging.Handler):
    """Counts events of the packages' loggers, by name and level."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.counts = Counts()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != _CLIENT and isinstance(record.msg, str) and _EVENT.fullmatch(record.msg):
            self.counts.add(record.msg, record.levelname.lower())

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count events while the context is active."""
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(self)
