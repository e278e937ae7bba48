"""The comparison drawn: a bar for each relay, a panel for each question."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harvest_lib.local_stack.state import default_state
from tests.benchmarks.compare.live import RATE
from tests.benchmarks.compare.results import rounded
from tests.benchmarks.report import Result

# Its font cache belongs to us, not into the user's home.
os.environ.setdefault("MPLCONFIGDIR", str(default_state() / "cache" / "matplotlib"))

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

_STYLE: Any = {"font.family": "sans-serif", "font.size": 10, "svg.hashsalt": "outbox-harvester"}
_OURS, _THEIRS = "#2f9e8f", "#7a8294"
_PANELS: Sequence[tuple[str, tuple[str, ...], str]] = (
    ("Drain of a backlog, records/s", ("drain-{}",), "log"),
    (
        f"Latency at {RATE} records/s, p50 and p99, ms",
        (f"latency-{RATE}-{{}}-p50", f"latency-{RATE}-{{}}-p99"),
        "linear",
    ),
    ("No new record after SIGKILL, s", ("failover-{}",), "linear"),
    ("Records that came twice for it", ("failover-{}-duplicates",), "symlog"),
    ("CPU of relay, and of Postgres and Kafka,\nµs per record", ("cpu-{}", "cpu-{}-servers"), "log"),
    ("Memory of the relay, MB", ("memory-{}",), "linear"),
)
_ROOM = 1.35
"""Beyond the longest bar, for its figure."""


def draw(results: Sequence[Result], titles: Mapping[str, str], file: Path) -> None:
    """Draw what there is of each relay named in `titles`, in their order, into a PNG file."""
    values = {result.name: result.value for result in results}
    with rc_context(_STYLE):
        figure = Figure(figsize=(11, 8), layout="constrained")
        for axes, (title, names, scale) in zip(figure.subplots(3, 2).flat, _PANELS, strict=True):
            _panel(axes, values, titles, names, scale)
            axes.set_title(title, fontsize=10, loc="left")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, format="png", dpi=110, facecolor="white", metadata={"Software": None})


def _panel(
    axes: Axes, values: Mapping[str, float], titles: Mapping[str, str], names: Sequence[str], scale: str
) -> None:
    shown = [each for each in titles if any(name.format(each) in values for name in names)]
    height = 0.8 / len(names)
    for part, name in enumerate(names):
        for row, each in enumerate(shown):
            if (value := values.get(name.format(each))) is None:
                continue
            colour = _OURS if titles[each].startswith("ours") else _THEIRS
            place = row + height * (part - (len(names) - 1) / 2)
            axes.barh(place, value, height=0.9 * height, color=colour, alpha=1.0 if part == 0 else 0.55)
            axes.annotate(f" {rounded(value)}", (value, place), va="center")
    axes.set_xscale(scale)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(shown)), [titles[each] for each in shown])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (_ROOM if scale == "linear" else 3 * _ROOM))
