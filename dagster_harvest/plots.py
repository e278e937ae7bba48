"""A plot of the last audits for a page of Dagster: delays, records, and findings over time."""

import base64
import io
from collections.abc import Sequence

from harvest_lib.audit.summary import MUST_BE_ZERO, AuditSummary

_DELAYS = ("delay_p50_ms", "delay_p95_ms", "delay_p99_ms", "delay_max_ms")
_COUNTS = ("committed", "backlog_records")
_FINDINGS = (*MUST_BE_ZERO, "duplicates_cross_epoch")
_INCHES, _DOTS_PER_INCH = (9, 8), 80


def audit_plot(audits: Sequence[AuditSummary]) -> str:
    """Return Markdown with a plot of audits, which are given with the oldest first."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - half a second, which no tick has a use for

    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    panels = figure.subplots(3, sharex=True)
    times = [each.at for each in audits]
    for axes, title, names in zip(
        panels, ("delay, ms", "records", "findings"), (_DELAYS, _COUNTS, _FINDINGS), strict=True
    ):
        for name in names:
            values = [getattr(each, name) for each in audits]
            known = [float("nan") if value is None else value for value in values]
            total = "" if values[-1] is None else f" {values[-1]:,.0f}"
            axes.plot(times, known, marker="o", markersize=3, label=f"{name}{total}")
        axes.set_title(title, loc="left")
        # The scale is linear around zero, because good values are 0, and a delay measured by two clocks may be below 0.
        axes.set_yscale("symlog", linthresh=1)
        axes.grid(alpha=0.3)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize="small")
    figure.autofmt_xdate()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    encoded = base64.b64encode(picture.getvalue()).decode()
    return f"![the last audits](data:image/png;base64,{encoded})"
