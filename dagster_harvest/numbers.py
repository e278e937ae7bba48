"""The numbers that a run reports, as a log line and as metadata of its topics."""

from dataclasses import dataclass
from typing import Any

import dagster as dg

from harvest_lib.subscriptions.backlog import Backlog

IDLE_SECONDS = 900.0
"""Interval of reports in seconds while nothing changes. A report is a log line, and an event for each topic. Each line
and each event takes 1.5 kB, so an idle run with a single topic writes 0.3 MB a day to Dagster's event log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The report of a run. `at` is in seconds of the monotonic clock. `rate` is in records per second since the last
    report. `waiting` is None if Postgres did not answer."""

    at: float
    delivered: int
    rate: float
    in_flight: int
    leader_id: str | None
    generation: int
    version: str
    waiting: Backlog | None

    def metadata(self, *, delivered: int, rate: float) -> dict[str, Any]:
        """Return the numbers as metadata of a topic, which Dagster's UI plots. `delivered` and `rate` are the topic's
        own."""
        shown: dict[str, Any] = {
            "delivered_records": dg.MetadataValue.int(delivered),
            "records_per_second": dg.MetadataValue.float(round(rate, 1)),
            "in_flight_records": dg.MetadataValue.int(self.in_flight),
            "is_leader": dg.MetadataValue.bool(self.leader_id is not None),
            "leader_id": dg.MetadataValue.text(self.leader_id or "standby"),
            "generation": dg.MetadataValue.int(self.generation),
            "version": dg.MetadataValue.text(self.version),
        }
        if self.waiting is not None and self.waiting.epoch is not None:
            shown["epoch"] = dg.MetadataValue.int(self.waiting.epoch)
        return shown

    def says_nothing_after(self, before: "Numbers | None") -> bool:
        """Return True if this report needs no publication: the last report is recent, the leader is the same, and in
        both reports nothing waits and nothing was delivered."""
        if before is None or self.at - before.at >= IDLE_SECONDS:
            return False
        is_idle = all(each.waiting is not None and each.waiting.records == 0 == each.rate for each in (self, before))
        return is_idle and self.leader_id == before.leader_id

    def line(self) -> str:
        """Return the numbers as a line for the log."""
        role = f"leader {self.leader_id[:8]}" if self.leader_id else "standby"
        waiting = (
            f"backlog {self.waiting}, the oldest {self.waiting.age_seconds:.1f} s"
            if self.waiting is not None
            else "backlog unknown"
        )
        return f"{role}: delivered {self.delivered:,}, {self.rate:,.0f} records/s, {waiting}"
