"""The picture of `make demo`: leaders, backlog, throughput into Kafka, and the kills, over time.

The SVG takes its colour of text from the page around it, so it is readable on light and dark pages. The PNG has a white
background.
"""

import io
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from harvest_lib.local_stack.state import default_state
from infra.demo.report import ACTS

# Matplotlib's font cache belongs into the state folder, not into the user's home.
os.environ.setdefault("MPLCONFIGDIR", str(default_state() / "cache" / "matplotlib"))

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

_HARVESTERS = ("#2f9e8f", "#d08a1d", "#7d6bd6")
_KILL = "#d6404a"
_BACKLOG = "#3d7edb"
_INK, _MUTED = "#202631", "#7a8294"
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "outbox-harvester",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _MUTED,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
}
_MARGIN_SECONDS = 1.0
_LABEL_POINTS, _SMALL_LABEL_POINTS = 10, 7
_WIDE, _NARROW = 0.16, 0.09
"""Shares of the time axis above which a leader's label has full size, or the word `harvester` before its number."""
_TITLES = ("goharvest's way: NELI, mark and purge", "exactly once: a lock in Postgres, transactions")


def png(report: Mapping[str, Any], path: Path) -> None:
    """Draw a report into a PNG file."""
    with rc_context(_STYLE):
        _drawn(report).savefig(path, format="png", dpi=130, facecolor="white", metadata={"Software": None})


def svg(report: Mapping[str, Any]) -> str:
    """Return a report as an SVG element for a page that sets `color` and `--muted`."""
    text = io.StringIO()
    with rc_context(_STYLE):
        _drawn(report).savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    element = text.getvalue()
    element = element[element.index("<svg") :].replace(_INK, "currentColor").replace(_MUTED, "var(--muted)")
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    opening, rest = element.split(">", maxsplit=1)
    # The page sets the size; viewBox has the proportions.
    return re.sub(r' (?:width|height)="[^"]*"', "", opening) + ">" + rest


def _drawn(report: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(13, 5.8), layout="constrained")
    panels = figure.subplots(3, 2, sharex="col", sharey="row", gridspec_kw={"height_ratios": [0.42, 1.5, 1.1]})
    for column, (name, title) in enumerate(zip(ACTS, _TITLES, strict=True)):
        _draw_act(panels[:, column], report[name])
        panels[0, column].set_title(title, loc="left", fontweight="bold", pad=22)
    for panel in panels[1:, 0]:
        panel.set_ylim(bottom=0)  # of the second act too, because the acts share this axis
    panels[0, 0].set_ylabel("leader", rotation=0, ha="right", va="center")
    panels[1, 0].set_ylabel("records waiting\nin the outbox")
    panels[2, 0].set_ylabel("records/s\ninto Kafka")
    return figure


def _draw_act(panels: Sequence[Axes], act: Mapping[str, Any]) -> None:
    lanes, backlog, throughput = panels
    samples, terms = act["samples"], act["terms"]
    lanes.set_xlim(*_limits(act))
    _draw_lanes(lanes, terms, act["failovers"])
    times = [sample["at"] for sample in samples]
    values = [sample["backlog"] for sample in samples]
    backlog.fill_between(times, values, color=_BACKLOG, alpha=0.25, linewidth=0, step="post")
    backlog.step(times, values, where="post", color=_BACKLOG, linewidth=1.6)
    rates = [sample["records_per_second"] for sample in samples]
    throughput.fill_between(times, rates, color=_INK, alpha=0.18, linewidth=0, step="pre")
    throughput.step(times, rates, where="pre", color=_INK, linewidth=1.1)
    throughput.set_xlabel("seconds since the act began")
    for panel in (backlog, throughput):
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        panel.grid(axis="y", color=_MUTED, alpha=0.25, linewidth=0.6)
        panel.set_axisbelow(True)
        for term in terms:
            panel.axvspan(term["first"], term["last"], color=_colour(term), alpha=0.13, linewidth=0)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        for failover in act["failovers"]:
            panel.axvline(failover["killed_at"], color=_KILL, linewidth=1.4, linestyle=(0, (4, 2)))


def _draw_lanes(axes: Axes, terms: Sequence[Mapping[str, Any]], failovers: Sequence[Mapping[str, Any]]) -> None:
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(bottom=False)
    for term in terms:
        width = max(term["last"] - term["first"], 0.05)
        axes.broken_barh([(term["first"], width)], (0.08, 0.62), color=_colour(term), alpha=0.85, linewidth=0)
    begin, end = axes.get_xlim()
    for number, span in _runs(terms):
        share = (span[1] - span[0]) / (end - begin)
        size = _LABEL_POINTS if share > _WIDE else _SMALL_LABEL_POINTS
        label = f"harvester {number}" if share > _NARROW else f"{number}"
        axes.text(sum(span) / 2, 0.39, label, ha="center", va="center", color="white", clip_on=True, fontsize=size)
    for failover in failovers:
        at, seconds = failover["killed_at"], failover["seconds"]
        axes.annotate(
            "SIGKILL", (at, 1.0), ha="center", va="bottom", color=_KILL, fontweight="bold", annotation_clip=False
        )
        if seconds is not None:
            axes.annotate(
                "",
                (at, 0.39),
                (at + seconds, 0.39),
                arrowprops={"arrowstyle": "<->", "color": _MUTED, "shrinkA": 2, "shrinkB": 2},
            )
            axes.text(at + seconds / 2, 0.72, f"{seconds:.1f} s", ha="center", va="bottom")


def _runs(terms: Sequence[Mapping[str, Any]]) -> list[tuple[int | None, tuple[float, float]]]:
    """Return each leading harvester with begin and end. Consecutive terms of the same harvester are combined."""
    runs: list[tuple[int | None, tuple[float, float]]] = []
    for term in terms:
        if runs and runs[-1][0] == term["harvester"]:
            runs[-1] = (term["harvester"], (runs[-1][1][0], term["last"]))
        else:
            runs.append((term["harvester"], (term["first"], term["last"])))
    return runs


def _colour(term: Mapping[str, Any]) -> str:
    return _HARVESTERS[(term["harvester"] or 0) % len(_HARVESTERS)]


def _limits(act: Mapping[str, Any]) -> tuple[float, float]:
    """Return the limits of the time axis. The axis begins 1 s before the first committed row, and leaves out
    the start of the servers."""
    first = next((later["at"] for _, later in pairwise(act["samples"]) if later["committed"]), 0.0)
    ends = [first, *(term["last"] for term in act["terms"]), *(each["killed_at"] for each in act["failovers"])]
    return first - _MARGIN_SECONDS, max(ends) + _MARGIN_SECONDS
