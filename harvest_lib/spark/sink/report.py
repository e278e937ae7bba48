"""The report of a batch, and its line in the log."""

import json
import logging
from dataclasses import asdict, dataclass
from typing import Literal

from harvest_lib.spark.sink.promotion import LedgerEntry

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """The result of a batch. `at` is the Unix time of its promotion by Postgres's clock, None for an empty batch."""

    batch: str
    rows: int
    status: Literal["promoted", "already-promoted", "empty"]
    staging_seconds: float = 0.0
    promote_seconds: float = 0.0
    at: float | None = None

    @classmethod
    def of(
        cls,
        batch: str,
        promoted: tuple[LedgerEntry, bool] | None,
        *,
        staging_seconds: float = 0.0,
        promote_seconds: float = 0.0,
    ) -> "BatchReport":
        """Return the report for what `promote` returned."""
        entry, is_ours = promoted or (None, False)
        return cls(
            batch=batch,
            rows=entry.rows if entry else 0,
            status="empty" if entry is None else "promoted" if is_ours else "already-promoted",
            staging_seconds=round(staging_seconds, 3),
            promote_seconds=round(promote_seconds, 3),
            at=entry.promoted_at.timestamp() if entry else None,
        )

    @property
    def rows_per_second(self) -> int:
        seconds = self.staging_seconds + self.promote_seconds
        return round(self.rows / seconds) if seconds else 0

    def as_json(self) -> str:
        """Return the report as a JSON object on one line, `rows_per_second` included."""
        return json.dumps(asdict(self) | {"rows_per_second": self.rows_per_second})


def log_report(report: BatchReport) -> BatchReport:
    """Log the report as the event `spark_batch_done`; return the report."""
    fields = asdict(report)
    del fields["at"]  # the line has a time of its own
    # Spark's formatters of log lines know no other field than `context`, a map of texts.
    context = {name: str(value) for name, value in fields.items()}
    _log.info("spark_batch_done", extra=fields | {"context": context})
    return report


def show_in_worker() -> None:
    """Show the line in a Python worker of Spark, which configures no logging: on stderr, which is the driver's, unless
    Spark captures log lines."""
    if _log.level == logging.NOTSET:
        _log.setLevel(logging.INFO)
    if not _log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s %(context)s"))
        _log.addHandler(handler)
