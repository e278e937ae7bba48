"""The way in which all demos run: servers, a place, parts that are started and watched, waits, and a report.

A demo is a program of `run_demo`. A scenario is a function of it that opens a `DemoRun`, feeds, kills and
compares, and returns the report.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psycopg
from rich.console import Console, RenderableType
from rich.text import Text

from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.state import default_state, make_folder, write_private
from harvest_lib.postgres.database import connect
from infra.consumers import SHORT_SESSION, ConsumerPool
from infra.demo.place import Place, made
from infra.demo.pool import SIZE, DemoPool
from infra.demo.progress import Progress
from infra.interruption import exit_code_of, interrupt_on_signals
from infra.waiting import until

Found = TypeVar("Found")
Report = Mapping[str, Any]
Keep = Callable[[Report], None]
"""Writes a report, which is shown at the end; of several the last report."""
Conduct = Callable[[Path, Progress, Keep], None]
"""Does all of a demo in its folder. Raises HarvestError when a part of it fails."""

_WAIT_SECONDS = 120.0
_SESSION = ("--set", "session.timeout.ms=6000")
_SERVERS = {"stack", "dagster"}


class Part(Protocol):
    """Something that a scenario starts, and that has to go on until the scenario lets go of it."""

    def start(self) -> None:
        """Start it; returns at once."""

    def look(self) -> object:
        """Raise HarvestError if it has failed."""

    def stop(self) -> None:
        """End it. Safe to repeat."""


class DemoRun(ExitStack):
    """One run of a scenario: its parts, which end with it, and its waits, during which they are watched."""

    def __init__(self, folder: Path, place: Place, progress: Progress, *, wait_seconds: float = _WAIT_SECONDS) -> None:
        super().__init__()
        self.folder, self.place, self.progress = folder, place, progress
        self._wait_seconds = wait_seconds
        self._parts: list[Part] = []

    def start(self, part: Part) -> None:
        """Start a part, and watch it."""
        self.callback(part.stop)
        part.start()
        self._parts.append(part)

    def let_go(self, part: Part) -> None:
        """Watch a part no more: it may end."""
        self._parts.remove(part)

    def private_file(self, name: str, text: str) -> Path:
        """Write a file that holds a password; it is removed at the end."""
        file = self.folder / name
        self.callback(file.unlink, missing_ok=True)
        write_private(file, text)
        return file

    def harvest(self, size: int = SIZE, **settings: object) -> DemoPool:
        """Start a pool of harvesters with settings of goharvest's file."""
        pool = DemoPool(self.private_file("harvest.yaml", self.place.reaper_yaml(**settings)), self.folder, size)
        self.start(pool)
        return pool

    def consume(self, module: str, *arguments: str, size: int) -> ConsumerPool:
        """Start a pool of consumers of the topic, whose sessions are as short as the brokers allow."""
        session = SHORT_SESSION if self.place.own_kafka else _SESSION
        pool = ConsumerPool(
            module,
            ["--topic", self.place.topic, *arguments, *session],
            size=size,
            variables={"HARVEST_DSN": self.place.dsn, "HARVEST_BOOTSTRAP_SERVERS": self.place.bootstrap_servers},
            folder=self.folder,
        )
        self.start(pool)
        return pool

    def wait(self, condition: Callable[[], Found | None], otherwise: str, **how: Any) -> Found:
        """Wait as `until` does, for as long as a run waits; raises what a part has failed of, meanwhile."""
        usual: dict[str, Any] = {
            "seconds": self._wait_seconds,
            "next_step": f"read the logs in {self.folder}",
            "watched": [part.look for part in self._parts],
        }
        return until(condition, otherwise=otherwise, **usual | how)

    def ask(self, query: str) -> int:
        """Return the number that a query finds, 0 while its table is missing: a consumer makes its own."""
        with connect(self.place.dsn) as connection:
            try:
                row = connection.execute(query).fetchone()
            except psycopg.errors.UndefinedTable:
                return 0
        return int(str(row[0])) if row else 0


@contextmanager
def servers(folder: Path, progress: Progress) -> Iterator[Stack]:
    """Provide Postgres and Kafka, from the environment or new, and nothing of an earlier run in the folder."""
    stack = Stack(folder / "stack", fresh=True, parts=default_state())
    own = [name for name, server in (("Postgres", stack.postgres), ("Kafka", stack.kafka)) if server]
    progress.say(f"starting {' and '.join(own)}" if own else "using the servers named in the environment")
    with stack:
        for left in folder.iterdir():  # not before the stack is held: another demo may be running
            if left.name not in _SERVERS:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        yield stack


def in_a_place(scenario: Callable[[Path, Place, Progress], Report], *, topic: str = "flights") -> Conduct:
    """Return a demo of a single scenario, in a place of its own."""

    def conduct(folder: Path, progress: Progress, keep: Keep) -> None:
        with servers(folder, progress) as stack, made(stack, topic=topic) as place:
            keep(scenario(folder, place, progress))

    return conduct


def zero(count: int) -> Text:
    """Return a count as a table shows it that has to be zero."""
    return Text(f"{count:,}", style="red" if count else "green")


def write_json(report: Report, folder: Path) -> None:
    """Write a report as `report.json`."""
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def run_demo(
    name: str,
    conduct: Conduct,
    tables: Callable[[Report], Iterable[RenderableType]],
    write: Callable[[Report, Path], object] = write_json,
) -> int:
    """Run a demo in the folder of its name, write its report there, show it, and return the exit code."""
    interrupt_on_signals()
    folder, console = make_folder(default_state() / name), Console(highlight=False)
    report: dict[str, Any] = {}

    def keep(found: Report) -> None:
        write(found, folder)
        report.update(found)

    def show() -> None:
        for table in tables(report) if report else ():
            console.print(table)
        for file in sorted(folder.glob("report.*")) if report else ():
            shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
            console.print(f"  {shown}", soft_wrap=True)

    def work() -> None:
        with ExitStack() as ending:
            ending.callback(show)
            conduct(folder, ending.enter_context(Progress(console)), keep)

    return exit_code_of(work, console) or int(not report["ok"])
