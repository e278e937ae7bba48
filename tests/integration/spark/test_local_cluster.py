"""`format("outbox")` on executors that are processes of their own, and are killed while they write and read."""

import json
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark
import pytest
from support.cluster_driver import ROWS
from support.outbox_format import environment
from support.sink import Database
from support.waiting import eventually

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(400)]

DEADLINE_SECONDS = 150
DRIVER = Path(__file__).parents[2] / "support" / "cluster_driver.py"
SPARK = Path(pyspark.__file__).parent
KILLS = 2
NOW_SECONDS = 0.3  # a worker tells it twenty times a second
COPYING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY %' AND datname = current_database()"
SETTINGS = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.buffer.size": "512",  # rows go from worker to worker as they come
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}


@pytest.fixture
def home(tmp_path):
    """A folder for SPARK_HOME: Spark as pip installs it, with a folder for the executors' work beside it."""
    made = tmp_path / "spark"
    made.mkdir()
    for name in ("bin", "jars"):
        (made / name).symlink_to(SPARK / name)
    return made


@contextmanager
def driver(what, database, folder, home):
    """A driver with two executors. Its log is `driver.log`, its executors' are in the folder `spark/work`."""
    (folder / "working").mkdir()
    command = [str(home / "bin" / "spark-submit")]
    for name, value in (SETTINGS | {"spark.local.dir": str(folder / "local")}).items():
        command += ["--conf", f"{name}={value}"]
    variables = environment() | {"SPARK_HOME": str(home), "CLUSTER_DSN": database.dsn}
    with (folder / "driver.log").open("w") as log, subprocess.Popen(
        [*command, str(DRIVER), what, str(folder)], cwd=folder, env=variables, stdout=log, stderr=log,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            for each in [*descendants(process), process]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def descendants(process):
    """Return the processes that a process has started, and those have, as far as they live."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def executors(process):
    """Return the executors that live, by their ids."""
    found = {}
    for each in descendants(process):
        with suppress(psutil.NoSuchProcess):
            if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline()):
                found[each.pid] = each
    return found


def busy_executor(process, folder):
    """Return an executor one of whose Python workers has rows in its hands now."""
    living = executors(process)
    for file in (folder / "working").iterdir():
        with suppress(psutil.NoSuchProcess):
            if time.time() - file.stat().st_mtime < NOW_SECONDS:
                parents = psutil.Process(int(file.name)).parents()
                return next((living[each.pid] for each in parents if each.pid in living), None)
    return None


@pytest.mark.parametrize("what", ["write", pytest.param("stream", marks=pytest.mark.long), "read"])
def test_executors_that_are_killed_cost_and_repeat_nothing(what, dsn, home, tmp_path):
    database = Database(dsn, "native")
    if what == "read":
        database.ask(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
            "SELECT 't', 'c' || n %% 7, json_build_object('n', n), '{}', '{}' FROM generate_series(0, %s) n",
            ROWS - 1,
        )
    killed = set()
    with driver(what, database, tmp_path, home) as process:

        def kill():
            assert process.poll() is None, (tmp_path / "driver.log").read_text()[-3_000:]
            if what != "read" and not database.ask(COPYING)[0][0]:
                return False
            executor = busy_executor(process, tmp_path)
            if executor is None or executor.pid in killed:
                return False
            assert len(executors(process)) <= 2
            executor.send_signal(signal.SIGKILL)
            killed.add(executor.pid)
            return True

        for _ in range(KILLS):
            eventually(kill, seconds=DEADLINE_SECONDS)
        assert process.wait(DEADLINE_SECONDS) == 0, (tmp_path / "driver.log").read_text()[-3_000:]
    assert len(killed) == KILLS
    numbers = [json.loads(value)["n"] for _, value, _, _ in database.records()]
    assert sorted(numbers) == list(range(ROWS))
    if what == "read":
        read = json.loads((tmp_path / "read.json").read_text())
        assert sorted(json.loads(value)["n"] for _, value in read) == list(range(ROWS))
    else:
        assert database.ask("SELECT sum(rows) FROM outbox_batches") == [(ROWS,)]
