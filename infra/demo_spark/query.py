"""The Spark job as a process whose driver or Python workers can be killed, and that is started again."""

import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark

from harvest_lib.clock import Deadline
from harvest_lib.errors import StackError
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.process import ServerProcess
from harvest_lib.local_stack.state import default_state, make_folder
from harvest_lib.postgres.database import connect
from infra.demo.place import Place
from infra.processes import failed
from infra.waiting import until

_WAIT_SECONDS = 60.0
_TICK_SECONDS = 0.005
_ATTEMPTS = 20
_NOTICED_SECONDS = 3.0
_PROMOTED = "SELECT count(*) FROM orders_batches"
_LOST_WORKER = b"Python worker exited unexpectedly"
_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class StreamQuery:
    """A process of `spark-submit` that is restarted after faults: two cores, and a task may fail three times."""

    def __init__(self, program: Path, place: Place, folder: Path, *, seed: int) -> None:
        """Prepare; nothing is started yet. The program reads the files in the folder `files`."""
        self.files, self._checkpoint = make_folder(folder / "files"), folder / "checkpoint"
        self.restarts = 0
        """Number of restarts after a fault ended the process. Restarts by `kill_driver` do not count."""
        self._program, self._place, self._folder = program, place, folder
        self._dice = random.Random(seed)  # noqa: S311 - nothing is kept secret by it
        self._excused = False
        self._process = ServerProcess("Spark", log=folder / "spark.log", stop_signals={signal.SIGTERM: 10.0})

    def start(self) -> None:
        """Start the process, and return at once."""
        settings = _SETTINGS | {
            "spark.local.dir": str(make_folder(self._folder / "tmp")),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
        }
        environment = self._place.environment() | {
            "JAVA_HOME": str(find_java(default_state())),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(make_folder(self._folder / "tmp")),
            "HARVEST_DSN": self._place.dsn_without_password(),
        }
        command: list[str | Path] = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", "local[2,4]"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        self._excused = False
        self._process.spawn(
            [*command, self._program, self.files, self._checkpoint, self._place.topic], environment=environment
        )

    def excuse(self) -> None:
        """Permit one end of the process by an error, because the next fault may cause it."""
        self._excused = True

    def look(self) -> None:
        """Start the process again if it has ended. Raises StackError if no fault explains the end."""
        if self._process.pid is not None:
            return
        if not self._excused:
            raise failed(self._process, "ended by itself")
        self.restarts += 1
        self.start()

    @property
    def in_batch(self) -> bool:
        """True if a micro-batch has begun and its commit is not yet in the checkpoint."""
        return _newest(self._checkpoint / "offsets") > _newest(self._checkpoint / "commits")

    def kill_driver(self, *, is_promoted: bool) -> None:
        """SIGKILL the driver and its child processes during a micro-batch, and start the process again.

        With `is_promoted` the kill waits until the outbox's ledger has the micro-batch but Spark's checkpoint lacks it.
        Spark then repeats the micro-batch. Raises StackError if 20 kills hit no micro-batch.
        """
        with connect(self._place.dsn) as connection:

            def is_due() -> bool:
                if not is_promoted:
                    return self.in_batch
                row = connection.execute(_PROMOTED).fetchone()
                return row is not None and int(str(row[0])) > _newest(self._checkpoint / "commits") + 1

            for _ in range(_ATTEMPTS):
                self._await(is_due)
                if not is_promoted:
                    time.sleep(self._dice.random() * 0.5)
                self._process.kill()
                hit = self.in_batch
                self.start()
                if hit:
                    return
        raise self._missed("driver")

    def kill_workers(self, await_staging: Callable[[], None]) -> None:
        """SIGKILL the Python workers while they stage rows. Raises StackError if Spark logs no lost worker."""
        self.excuse()
        for _ in range(_ATTEMPTS):
            workers = self._workers()  # listed before, because listing takes longer than staging
            seen = self._process.log.stat().st_size
            await_staging()
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
            noticed = Deadline(_NOTICED_SECONDS)
            while not noticed.passed:
                if self._lost_a_worker(seen):
                    return
                time.sleep(_TICK_SECONDS)
        raise self._missed("Python worker")

    def finish(self) -> None:
        """Wait until the last micro-batch is committed, and stop the process."""
        self._await(lambda: not self.in_batch)
        self.stop()

    def stop(self) -> None:
        """Stop the process, by SIGTERM and then by force."""
        self._process.stop()

    def _await(self, condition: Callable[[], bool]) -> None:
        until(
            condition,
            _WAIT_SECONDS,
            "Spark does not go on",
            next_step=self._advice,
            tick_seconds=_TICK_SECONDS,
            watched=[self.look],
            progress=lambda: self._process.log.stat().st_size,
        )

    def _workers(self) -> list[psutil.Process]:
        """Return the Python workers, which are the processes that PySpark's daemon has forked."""
        found: list[psutil.Process] = []
        if (pid := self._process.pid) is None:
            return found
        with suppress(psutil.NoSuchProcess):
            for each in psutil.Process(pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # psutil raises it for a zombie too
                    if "pyspark.daemon" in each.cmdline() and "pyspark.daemon" in psutil.Process(each.ppid()).cmdline():
                        found.append(each)
        return found

    def _lost_a_worker(self, seen: int) -> bool:
        """Return True if Spark has logged a lost worker after the first `seen` bytes of its log."""
        with self._process.log.open("rb") as log:
            log.seek(seen)
            return _LOST_WORKER in log.read()

    def _missed(self, part: str) -> StackError:
        return StackError(f"no kill of a {part} came in a micro-batch", next_step=self._advice)

    @property
    def _advice(self) -> str:
        return f"read {self._process.log}"


def _newest(log: Path) -> int:
    """Return the number of the newest entry in a folder of the checkpoint, -1 if the folder has none."""
    if not log.is_dir():
        return -1
    return max((int(entry.name) for entry in log.iterdir() if entry.name.isdigit()), default=-1)
