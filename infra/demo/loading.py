"""The Spark job of `make demo`: a process that loads the flights month by month and reports each month in its log."""

import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from harvest_lib.local_stack.jars import POSTGRES_JDBC, resolve
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.process import ServerProcess
from harvest_lib.local_stack.state import default_state, make_folder
from infra.demo.place import Place
from infra.log_lines import JsonLines
from infra.processes import failed

FLIGHTS = 336_776
"""Number of rows in the data set, for the progress bar and the times of kills. The audit does not use this number:
it reads the committed rows from Postgres."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """A committed month. `at` is Unix time; `seconds` is the time to write it (for Spark: staging and promotion)."""

    batch: str
    rows: int
    seconds: float
    at: float


class Loading:
    """A process that runs `harvest_lib.spark.flights.by_month` once."""

    writer = "Spark"

    def __init__(self, place: Place, folder: Path) -> None:
        """Prepare; nothing is started yet. The log is written to `folder`."""
        self.months: list[Month] = []
        self.done = False
        self._place = place
        self._folder = folder
        self._process = ServerProcess(
            "Spark", log=folder / "spark.log", stop_signals={signal.SIGINT: 5, signal.SIGTERM: 2}
        )
        self._lines = JsonLines(self._process.log)

    @property
    def rows(self) -> int:
        """Number of committed rows at the last `look`."""
        return sum(month.rows for month in self.months)

    def start(self) -> None:
        """Start the job, and return at once."""
        java_home = find_java(default_state())
        jars = resolve(POSTGRES_JDBC, default_state())
        environment = self._place.environment() | {
            "JAVA_HOME": str(java_home),
            "HARVEST_SPARK_JARS": ",".join(map(str, jars)),
            "TMPDIR": str(make_folder(self._folder / "tmp")),
        }
        command = [sys.executable, "-m", "harvest_lib.spark.flights.by_month", "--json"]
        command += ["--dsn", self._place.dsn_without_password(), "--topic", self._place.topic]
        self._process.spawn(command, environment=environment)

    def look(self) -> list[Month]:
        """Return the months committed since the last call. Raises StackError if the job has failed."""
        ended = self._process.pid is None  # read before the log, so that the log then has the last lines
        new = []
        for line in self._lines.new():
            if "summary" in line:
                self.done = True
            elif line.get("status") == "promoted":
                seconds = line["staging_seconds"] + line["promote_seconds"]
                new.append(Month(batch=line["batch"], rows=line["rows"], seconds=seconds, at=line["at"]))
        self.months += new
        if ended and not self.done:
            raise failed(self._process, f"ended after {len(self.months)} of 12 months")
        return new

    def stop(self) -> None:
        """End the job and its Java process."""
        self._process.stop()
