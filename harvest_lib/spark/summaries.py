"""The sum of the batches of a run."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from harvest_lib.spark.sink.report import BatchReport


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """The result of a run. The rates are promoted rows per second of staging time, and per second of promotion time."""

    batches: int
    rows: int
    promoted: int
    already_promoted: int
    empty: int
    promoted_rows: int
    staging_rows_per_second: int
    promotion_rows_per_second: int
    seconds: float

    def as_json(self) -> str:
        """Return the summary as a JSON object on one line, below the key `summary`."""
        return json.dumps({"summary": asdict(self)})


def summarize(reports: Sequence[BatchReport], *, seconds: float) -> LoadSummary:
    """Add up the reports of a run that took `seconds`, start of Spark included."""
    promoted = [report for report in reports if report.status == "promoted"]
    rows = sum(report.rows for report in promoted)

    def rate(spent: float) -> int:
        return round(rows / spent) if spent else 0

    return LoadSummary(
        batches=len(reports),
        rows=sum(report.rows for report in reports),
        promoted=len(promoted),
        already_promoted=sum(report.status == "already-promoted" for report in reports),
        empty=sum(report.status == "empty" for report in reports),
        promoted_rows=rows,
        staging_rows_per_second=rate(sum(report.staging_seconds for report in promoted)),
        promotion_rows_per_second=rate(sum(report.promote_seconds for report in promoted)),
        seconds=round(seconds, 3),
    )
