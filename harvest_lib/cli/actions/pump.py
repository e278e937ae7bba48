"""The progress bar and the interval of `harvest pump`."""

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from harvest_lib.cli.terminal import watched
from harvest_lib.config.durations import SPELLING, parse_duration


class _Rate(ProgressColumn):
    """Records a second, over the last ones."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f}/s", style="cyan")


def progress_bar() -> Progress:
    return Progress(
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,} of {task.total:,} records"),
        _Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        expand=True,
        disable=not watched(),
    )


def interval_seconds(duration: str) -> float:
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise typer.BadParameter(f"{duration!r} {error}: {SPELLING}", param_hint="--interval") from error
    if seconds < 0:
        raise typer.BadParameter(f"{duration!r} is negative", param_hint="--interval")
    return seconds
