"""Warnings of the harvester in the log of its run in Dagster, as texts."""

import logging
import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_FIELDS = ("count", "topics", "ids", "reasons")
_MOST_VALUES, _LONGEST_TEXT = 10, 500


class _QueueHandler(logging.Handler):
    def __init__(self, logs: "queue.SimpleQueue[tuple[int, str]]") -> None:
        super().__init__(logging.WARNING)
        self._logs = logs

    def emit(self, record: logging.LogRecord) -> None:
        self._logs.put((record.levelno, forwarded_text(record)))


def forwarded_text(record: logging.LogRecord) -> str:
    """Return the name of a log event with its reason. An event about parked records has their number, topics, ids and
    reasons instead. Long values are cut off."""
    fields: Mapping[str, Any] = record.__dict__
    stated = [f"{name} {_listed(fields[name])}" for name in _FIELDS if fields.get(name)]
    stated += [str(fields["reason"])] if fields.get("reason") else []
    return f"{record.getMessage()}: {'; '.join(stated)}" if stated else record.getMessage()


def _listed(value: object) -> str:
    values = value if isinstance(value, list | tuple) else [value]
    text = ", ".join(map(str, values[:_MOST_VALUES]))
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


@contextmanager
def forwarded_logs(logs: "queue.SimpleQueue[tuple[int, str]]") -> Iterator[None]:
    """Put warnings of the library and of the heartbeat thread into the queue."""
    handler = _QueueHandler(logs)
    loggers = [logging.getLogger("harvest_lib"), logging.getLogger("dagster_harvest.heartbeat_thread")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
