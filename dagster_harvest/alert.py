"""An alert of an outbox, and the functions that report alerts."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["run_failed", "run_recovered", "check_failed", "check_recovered", "daemon_missing", "daemon_recovered"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A change that operators have to know. `str()` returns the text and the next step.

    `checks` are the names of the checks that failed or recovered. `run_id` is the run that failed or recovered, or the
    run that waits in the queue. `severity` is the severity of a failed check.
    """

    kind: Kind
    outbox: str
    text: str
    next_step: str | None = None
    run_id: str | None = None
    checks: tuple[str, ...] = ()
    severity: Literal["WARN", "ERROR"] | None = None

    def __str__(self) -> str:
        return f"{self.text}\n  next step: {self.next_step}" if self.next_step else self.text

    @property
    def is_recovery(self) -> bool:
        """True if the alert reports the end of a problem."""
        return self.kind.endswith("_recovered")


Tell = Callable[[Alert], None]
"""A function that reports an alert. If it raises, the sensor calls it again in the next two ticks."""


def log_alert(alert: Alert) -> None:
    """Write the alert to the log of the code location."""
    if alert.is_recovery:
        _log.info("dagster_alert", extra={"reason": str(alert)})
    else:
        _log.error("dagster_alert", extra={"reason": str(alert)})
