"""Numbers that a run reports, as a log line and as metadata of its topics."""

from dataclasses import dataclass

import dagster as dg

from harvest_lib.subscriptions.backlog import Backlog

IDLE_SECONDS = 900.0
"""Interval of reports while nothing changes. A report is a log line and an event for each topic, of 1.5 kB each: an
idle run with one topic writes 0.3 MB a day to Dagster's event log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Report of a run. `at` is in seconds of the monotonic clock, `rate` in records per second since the numbers
    before; `waiting` is None without Postgres."""

    at: float
    delivered: int
    rate: float
    in_flight: int
    leader_id: str | None
    generation: int
    version: str
    waiting: Backlog | None

    def metadata(self) -> dict[str, dg.MetadataValue]:
        """Return them as the UI plots them."""
        shown: dict[str, dg.MetadataValue] = {
            "delivered_records": dg.MetadataValue.int(self.delivered),
            "records_per_second": dg.MetadataValue.float(round(self.rate, 1)),
            "in_flight_records": dg.MetadataValue.int(self.in_flight),
            "is_leader": dg.MetadataValue.bool(self.leader_id is not None),
            "leader_id": dg.MetadataValue.text(self.leader_id or "standby"),
            "generation": dg.MetadataValue.int(self.generation),
            "version": dg.MetadataValue.text(self.version),
        }
        if self.waiting is not None:
            shown["backlog_records"] = dg.MetadataValue.int(self.waiting.records)
            shown["backlog_age_seconds"] = dg.MetadataValue.float(round(self.waiting.age_seconds, 3))
            if self.waiting.epoch is not None:
                shown["epoch"] = dg.MetadataValue.int(self.waiting.epoch)
        return shown

    def says_nothing_after(self, before: "Numbers | None") -> bool:
        """Return True if nothing waits and nothing but time has passed since an earlier report, and not for long."""
        if before is None or self.at - before.at >= IDLE_SECONDS:
            return False
        is_idle = all(each.waiting is not None and each.waiting.records == 0 == each.rate for each in (self, before))
        return is_idle and self.leader_id == before.leader_id

    def line(self) -> str:
        """Return them for the log."""
        role = f"leader {self.leader_id[:8]}" if self.leader_id else "standby"
        waiting = (
            f"backlog {self.waiting}, the oldest {self.waiting.age_seconds:.1f} s"
            if self.waiting is not None
            else "backlog unknown"
        )
        return f"{role}: delivered {self.delivered:,}, {self.rate:,.0f} records/s, {waiting}"
