"""Maintenance of segments by a harvester: it creates them in advance, rotates old ones, and drops unneeded ones.

The leader of shard 0 runs the maintenance every minute, on a separate thread and connection. So the maintenance delays
no record; its errors are logged, and the next round tries again. It needs the rights of the table's owner. If the
harvester has another role, run `harvest segments` from cron instead.
"""

import logging
import threading
from typing import Any

import psycopg

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import HarvestError, OutboxTableError
from harvest_lib.leadership import Term
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.segments import Dropping, detached_segments, drop_passed, ensure_segments, rotate_segment
from harvest_lib.outbox.stamping import check_replication
from harvest_lib.postgres.database import connect
from harvest_lib.process import threads

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 60.0
_PATIENCE_SECONDS = 1.0
"""Longest time for the attempts at a change in one round. It is short because each attempt may block writers for 0.2 s.
If a transaction is open for hours, each round in these hours repeats the attempts."""


class Maintenance:
    """The maintenance of an outbox's segments, over all terms of a process. An error is logged only once until the
    maintenance succeeds again. If segments cannot be dropped, the reason is logged once, and again when the number of
    these segments changes."""

    def __init__(self, config: HarvestConfig, outbox: OutboxTable) -> None:
        self._conninfo = config.data_source.conninfo()
        self._outbox = outbox
        self._keep_seconds = config.keep_segments_seconds
        self._max_age_seconds = config.max_segment_age_seconds
        self._complaint = ""
        self._held = ("", 0)
        self._detached: list[str] = []
        self._replicated = False

    def begin(self, term: Term, stopping: threading.Event) -> None:
        """Start a thread that maintains the segments until the term is over, and return at once."""
        threads.repeat(
            "harvest-segments",
            self._maintain_now,
            stopping=stopping,
            pause_seconds=lambda: _EVERY_SECONDS,
            is_needed=term.is_live,
            on_error=self._log_error,
        )

    def maintain(self) -> None:
        """Run all steps of the maintenance, even if a step fails. Then raise the first error."""
        errors: list[Exception] = []
        with connect(self._conninfo) as connection:
            for step in (self._create, self._rotate, self._drop, self._log_detached, self._log_replicated):
                try:
                    step(connection)
                except Exception as error:  # noqa: BLE001 - raised below, after the other steps
                    errors.append(error)
        if errors:
            raise errors[0]

    def _create(self, connection: psycopg.Connection[Any]) -> None:
        made = ensure_segments(connection, self._outbox, patience_seconds=_PATIENCE_SECONDS).made
        if made:
            _log.info("segments_changed", extra={"made": made, "dropped": []})

    def _rotate(self, connection: psycopg.Connection[Any]) -> None:
        if not self._max_age_seconds:
            return
        rotated = rotate_segment(
            connection,
            self._outbox,
            older_than_seconds=self._max_age_seconds,
            patience_seconds=_PATIENCE_SECONDS,
        )
        if rotated is not None:
            _log.info("segment_rotated", extra={"segment": rotated.segment, "next_id": rotated.next_id})

    def _drop(self, connection: psycopg.Connection[Any]) -> None:
        dropped = drop_passed(connection, self._outbox, keep_seconds=self._keep_seconds)
        self._log_held(dropped)
        if dropped.dropped:
            _log.info("segments_changed", extra={"made": 0, "dropped": list(dropped.dropped)})

    def _log_detached(self, connection: psycopg.Connection[Any]) -> None:
        detached = [str(each) for each in detached_segments(connection, self._outbox)]
        for each in detached:
            if each not in self._detached:  # logged once for each state of the segment
                _log.error("segment_detached", extra={"reason": each})
        self._detached = detached

    def _log_replicated(self, connection: psycopg.Connection[Any]) -> None:
        try:
            check_replication(connection, self._outbox)
            self._replicated = False
        except OutboxTableError as error:
            if not self._replicated:
                _log.error("rows_replicated", extra={"reason": error.evidence, "next_step": error.next_step})
            self._replicated = True

    def _log_held(self, dropped: Dropping) -> None:
        held = (dropped.kept, dropped.held_segments)
        if dropped.held_segments and held != self._held:
            _log.warning(
                "segments_held",
                extra={"segments": dropped.held_segments, "bytes": dropped.held_bytes, "reason": dropped.because},
            )
        self._held = held

    def _maintain_now(self) -> None:
        self.maintain()
        self._complaint = ""

    def _log_error(self, error: BaseException) -> None:
        reason, next_step = type(error).__name__, ""
        if isinstance(error, HarvestError):
            reason, next_step = ": ".join(filter(None, (error.cause, error.evidence))), error.next_step
        if reason == self._complaint:  # the same error was logged already
            return
        self._complaint = reason
        trace = None if isinstance(error, HarvestError | psycopg.Error) else error
        _log.warning("segments_neglected", extra={"reason": reason, "next_step": next_step}, exc_info=trace)
