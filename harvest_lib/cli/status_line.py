"""The status line of `harvest run`: the role of this process, its counters and its rate.

It is the last line of the terminal, below the log. It reads only the harvester's memory, and sends no query to Postgres
or Kafka.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harvest_lib.harvester.harvest import Harvest, State

_REFRESHES_PER_SECOND = 4
_RATE_SECONDS = 3.0
_SHORT_ID = 8


class StatusLine:
    """Renders the status line of a harvester."""

    def __init__(self, harvest: Harvest) -> None:
        self._harvest = harvest
        self._readings: deque[tuple[float, int]] = deque()

    def render(self, now: float) -> Text:
        """Return the line. `now` is a monotonic time in seconds. The rate covers the last three seconds."""
        harvest = self._harvest
        delivered = harvest.delivered_records
        self._readings.append((now, delivered))
        while len(self._readings) > 1 and now - self._readings[1][0] >= _RATE_SECONDS:
            self._readings.popleft()
        then, before = self._readings[0]
        rate = (delivered - before) / (now - then) if now > then else 0.0
        return Text.assemble(
            _role(harvest),
            ("  delivered ", "dim"),
            f"{delivered:,}",
            ("  rate ", "dim"),
            f"{rate:,.0f}/s",
            ("  in flight ", "dim"),
            f"{harvest.in_flight_records:,}",
            no_wrap=True,
            overflow="ellipsis",
        )


@contextmanager
def status_line(harvest: Harvest, log: "logging.StreamHandler[Any]") -> Iterator[None]:
    """Show the status line on standard error while the context is active. The log is written above it."""
    console = Console(stderr=True)
    line = StatusLine(harvest)
    live = Live(
        get_renderable=lambda: line.render(time.monotonic()),
        console=console,
        refresh_per_second=_REFRESHES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    live.start()
    stream = log.setStream(_Above(console))
    try:
        yield
    finally:
        log.acquire()  # without this, a log record that is written now would draw the erased line again
        try:
            log.flush()
            live.stop()
            log.setStream(stream)
        finally:
            log.release()


class _Above:
    """A stream that writes its lines unchanged above the status line."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> int:
        self._console.print(Text.from_ansi(text.removesuffix("\n")), soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        """Do nothing, because each write is printed at once."""


def _role(harvest: Harvest) -> tuple[str, str]:
    leader_id = harvest.leader_id
    if harvest.state is not State.RUNNING:
        return "starting" if harvest.state is State.CREATED else harvest.state.value, "bold yellow"
    if leader_id is None:
        return "standby", "bold"
    return f"leader {str(leader_id)[:_SHORT_ID]}", "bold green"
