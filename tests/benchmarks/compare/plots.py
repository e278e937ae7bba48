"""The comparison drawn: a bar for each relay, a panel for each question."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harvest_lib.local_stack.state import default_state
from tests.benchmarks.compare.live import RATE
from tests.benchmarks.compare.ours import PRODUCT
from tests.benchmarks.compare.results import rounded
from tests.benchmarks.report import Result

# Its font cache belongs to us, not into the user's home.
os.environ.setdefault("MPLCONFIGDIR", str(default_state() / "cache" / "matplotlib"))

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

_STYLE: Any = {"font.family": "sans-serif", "font.size": 10, "svg.hashsalt": "outbox-harvester"}
_OURS, _THEIRS = "#2f9e8f", "#7a8294"
_FAINT = 0.5
_ABOVE_LEGEND = 24
_PANELS: Sequence[tuple[str, Mapping[str, str]]] = (
    ("Drain of a backlog: records/s, more is better", {"drain-{}": ""}),
    (
        f"Latency at {RATE} records/s: ms",
        {f"latency-{RATE}-{{}}-p50": "median", f"latency-{RATE}-{{}}-p99": "99th percentile"},
    ),
    ("From SIGKILL of the leader to the next record: s", {"failover-{}": ""}),
    ("Repeated records after it", {"failover-{}-duplicates": ""}),
    ("CPU for a record: µs", {"cpu-{}": "relay", "cpu-{}-servers": "Postgres and Kafka"}),
    ("Memory of the relay: MB", {"memory-{}": ""}),
)
"""Each panel's title, and its figures with their meanings, if there are several."""
_ROOM = 1.2
"""Beyond the longest bar, for its figure."""


def draw(results: Sequence[Result], titles: Mapping[str, str], file: Path) -> None:
    """Draw what there is of each relay named in `titles`, in their order, into a PNG file."""
    values = {result.name: result.value for result in results}
    with rc_context(_STYLE):
        figure = Figure(figsize=(11, 8), layout="constrained")
        for axes, (title, parts) in zip(figure.subplots(3, 2).flat, _PANELS, strict=True):
            _panel(axes, values, titles, parts)
            axes.set_title(title, fontsize=10, loc="left", pad=_ABOVE_LEGEND if len(parts) > 1 else None)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, format="png", dpi=110, facecolor="white", metadata={"Software": None})


def _panel(axes: Axes, values: Mapping[str, float], titles: Mapping[str, str], parts: Mapping[str, str]) -> None:
    shown = [each for each in titles if any(name.format(each) in values for name in parts)]
    height = 0.8 / len(parts)
    for part, name in enumerate(parts):
        for row, each in enumerate(shown):
            if (value := values.get(name.format(each))) is None:
                continue
            colour = _OURS if titles[each].startswith(PRODUCT) else _THEIRS
            place = row + height * (part - (len(parts) - 1) / 2)
            axes.barh(place, value, height=0.9 * height, color=colour, alpha=_FAINT if part else 1.0)
            axes.annotate(f" {rounded(value)}", (value, place), va="center")
    if len(parts) > 1:
        shades = [Patch(color=_THEIRS, alpha=_FAINT if part else 1.0) for part in range(len(parts))]
        above: Any = {"loc": "lower left", "bbox_to_anchor": (-0.03, 0.96), "ncols": len(parts)}
        axes.legend(shades, list(parts.values()), frameon=False, fontsize=9, **above)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_yticks(range(len(shown)), [titles[each] for each in shown])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    low, high = axes.get_xlim()
    axes.set_xlim(low, max(high, 1.0) * _ROOM)
