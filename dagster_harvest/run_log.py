"""The messages of a run that harvests, in Dagster's event log. Harvesting never depends on Dagster's own storage."""

import logging
import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import dagster as dg

from harvest_lib.events import Event, LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked, MeterRead

_log = logging.getLogger(__name__)


class RunLog:
    """Writes the messages of a run. Other threads only queue messages: the thread of the run writes all of them."""

    def __init__(self, log: dg.DagsterLogManager) -> None:
        self._log = log
        self._told: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

    def say(self, text: str, level: int = logging.INFO) -> None:
        """Write a message."""
        with without_dagsters_storage():
            self._log.log(level, text)

    def hear(self, event: Event) -> None:
        """Queue a message about a change of leadership. Any thread may call this method."""
        match event:
            case LeaderAcquired():
                self._told.put((logging.INFO, f"leads shard {event.shard} as {event.leader_id}"))
            case LeaderRefreshed():
                self._told.put((logging.WARNING, f"leads shard {event.shard} under a new id, {event.leader_id}"))
            case LeaderRevoked():
                self._told.put((logging.INFO, f"leads shard {event.shard} no longer: leadership was handed over"))
            case LeaderFenced():
                self._told.put((logging.WARNING, f"fenced itself off shard {event.shard}: it could not prove to lead"))
            case MeterRead():
                pass

    def pass_on(self) -> None:
        """Write the queued messages."""
        with suppress(queue.Empty):
            while True:
                level, text = self._told.get_nowait()
                self.say(text, level)

    @contextmanager
    def forwarded(self) -> Iterator[None]:
        """Queue warnings of the library and of the heartbeat thread while the context is active."""
        handler = _QueueHandler(self._told)
        loggers = [logging.getLogger("harvest_lib"), logging.getLogger("dagster_harvest.heartbeat_thread")]
        for logger in loggers:
            logger.addHandler(handler)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(handler)


class _QueueHandler(logging.Handler):
    def __init__(self, told: "queue.SimpleQueue[tuple[int, str]]") -> None:
        super().__init__(logging.WARNING)
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        fields: Mapping[str, Any] = record.__dict__
        reason = fields.get("reason")
        self._told.put((record.levelno, f"{record.getMessage()}: {reason}" if reason else record.getMessage()))


@contextmanager
def without_dagsters_storage() -> Iterator[None]:
    """Log and ignore errors of Dagster's own storage within the block: harvesting does not depend on reporting."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - any storage has its own errors; an interrupt is a BaseException
        _log.warning("event_log_failed", extra={"reason": type(error).__name__})
