"""Maintenance beside harvesting: segments are created ahead of need, and dropped once nobody needs them.

Whoever leads shard 0 does it, every minute, on a thread and a connection of its own: it holds up no record, and what
goes wrong with it is logged and tried again. It takes the table's owner; where the harvester is not that, run
`harvest segments` by the clock instead.
"""

import logging
import threading

import psycopg

from harvest_lib.database import connect
from harvest_lib.errors import HarvestError
from harvest_lib.leadership import Term
from harvest_lib.outbox import OutboxTable, detached_segments, drop_passed, ensure_segments

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 60.0


class Maintenance:
    """Look after the segments of one outbox, for as long as a term lasts, term after term. `keep_seconds` is how long a
    segment stays after it was closed. What keeps it from that is logged once, until it works again."""

    def __init__(self, conninfo: str, outbox: OutboxTable, keep_seconds: float) -> None:
        self._conninfo = conninfo
        self._outbox = outbox
        self._keep_seconds = keep_seconds
        self._complaint = ""
        self._detached: list[str] = []

    def begin(self, term: Term, stopping: threading.Event) -> None:
        """Look after them until the term is over; returns at once."""
        threading.Thread(target=self._run, args=(term, stopping), name="harvest-segments", daemon=True).start()

    def look(self) -> None:
        """Do what there is to do now. Raises DatabaseError, or OutboxTableError."""
        with connect(self._conninfo) as connection:
            made = ensure_segments(connection, self._outbox)
            dropped = drop_passed(connection, self._outbox, keep_seconds=self._keep_seconds)
            detached = [str(each) for each in detached_segments(connection, self._outbox)]
        for each in detached:
            if each not in self._detached:  # once for each state that it is found in
                _log.error("segment_detached", extra={"reason": each})
        self._detached = detached
        if made.made or dropped.dropped:
            _log.info("segments_changed", extra={"made": made.made, "dropped": list(dropped.dropped)})

    def _run(self, term: Term, stopping: threading.Event) -> None:
        while term.is_live() and not stopping.is_set():
            try:
                self.look()
                self._complaint = ""
            except (HarvestError, psycopg.Error) as error:
                reason = (error.evidence or error.cause) if isinstance(error, HarvestError) else type(error).__name__
                if reason != self._complaint:  # once, not every minute, nor in each term
                    self._complaint = reason
                    _log.warning("segments_neglected", extra={"reason": reason})
            stopping.wait(_EVERY_SECONDS)
