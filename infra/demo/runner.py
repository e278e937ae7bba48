"""The frame of all demos: servers, a database and a topic, parts that are started and watched, waits, and a report.

The main program of a demo calls `run_demo` with its scenario: a function that opens a `DemoRun`, writes, kills,
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
"""Writes a report to files. The last report that was written is shown at the end."""
Conduct = Callable[[Path, Progress, Keep], None]
"""Runs a whole demo in its folder. Raises HarvestError if a part of it fails."""

_WAIT_SECONDS = 120.0
_SESSION = ("--set", "session.timeout.ms=6000")
_SERVERS = {"stack", "dagster"}


class Part(Protocol):
    """Something that a scenario starts, such as a process, and that must run until the scenario calls `let_go`."""

    def start(self) -> None:
        """Start the part, and return at once."""

    def look(self) -> object:
        """Raise HarvestError if the part has failed."""

    def stop(self) -> None:
        """End the part. Safe to repeat."""


class DemoRun(ExitStack):
    """One run of a scenario. Its parts are watched during waits, and are stopped when this context ends."""

    def __init__(self, folder: Path, place: Place, progress: Progress, *, wait_seconds: float = _WAIT_SECONDS) -> None:
        super().__init__()
        self.folder, self.place, self.progress = folder, place, progress
        self._wait_seconds = wait_seconds
        self._parts: list[Part] = []

    def start(self, part: Part) -> None:
        """Start a part, watch it during waits, and stop it at the end."""
        self.callback(part.stop)
        part.start()
        self._parts.append(part)

    def let_go(self, part: Part) -> None:
        """Stop watching a part, because it may end from now on."""
        self._parts.remove(part)

    def private_file(self, name: str, text: str) -> Path:
        """Write a file with a password, readable by its owner only. It is removed at the end."""
        file = self.folder / name
        self.callback(file.unlink, missing_ok=True)
        write_private(file, text)
        return file

    def harvest(self, size: int = SIZE, **settings: object) -> DemoPool:
        """Start a pool of harvesters with these settings, in goharvest's spelling."""
        pool = DemoPool(self.private_file("harvest.yaml", self.place.reaper_yaml(**settings)), self.folder, size)
        self.start(pool)
        return pool

    def consume(self, module: str, *arguments: str, size: int) -> ConsumerPool:
        """Start a pool of consumers of the topic. Their sessions are as short as the brokers allow."""
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
        """Wait as `until` does, with this run's defaults. Raises the error of a watched part that fails during the
        wait."""
        usual: dict[str, Any] = {
            "seconds": self._wait_seconds,
            "next_step": f"read the logs in {self.folder}",
            "watched": [part.look for part in self._parts],
        }
        return until(condition, otherwise=otherwise, **usual | how)

    def ask(self, query: str) -> int:
        """Return the number that a query finds. Return 0 if the table is missing, because a consumer creates its table
        when it starts."""
        with connect(self.place.dsn) as connection:
            try:
                row = connection.execute(query).fetchone()
            except psycopg.errors.UndefinedTable:
                return 0
        return int(str(row[0])) if row else 0


@contextmanager
def servers(folder: Path, progress: Progress) -> Iterator[Stack]:
    """Provide the Postgres and Kafka that the environment names; start each that it does not name. Remove files of
    earlier runs from the folder."""
    stack = Stack(folder / "stack", fresh=True, parts=default_state())
    own = [name for name, server in (("Postgres", stack.postgres), ("Kafka", stack.kafka)) if server]
    progress.say(f"starting {' and '.join(own)}" if own else "using the servers named in the environment")
    with stack:
        for left in folder.iterdir():  # only when this process holds the stack: another demo may be running
            if left.name not in _SERVERS:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        yield stack


def in_a_place(scenario: Callable[[Path, Place, Progress], Report], *, topic: str = "flights") -> Conduct:
    """Return a demo that runs a single scenario on servers, with its own outbox and topic."""

    def conduct(folder: Path, progress: Progress, keep: Keep) -> None:
        with servers(folder, progress) as stack, made(stack, topic=topic) as place:
            keep(scenario(folder, place, progress))

    return conduct


def zero(count: int) -> Text:
    """Return the text of a count that must be zero: green for zero, else red."""
    return Text(f"{count:,}", style="red" if count else "green")


def write_json(report: Report, folder: Path) -> None:
    """Write a report to `report.json`."""
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def run_demo(
    name: str,
    conduct: Conduct,
    tables: Callable[[Report], Iterable[RenderableType]],
    write: Callable[[Report, Path], object] = write_json,
) -> int:
    """Run a demo in the state folder's subfolder `name`, write and show its report, and return the exit code."""
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
