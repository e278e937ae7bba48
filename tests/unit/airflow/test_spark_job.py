"""A job of Spark that a task of Airflow runs: exit codes, settings, and its end. A module of ours stands for it."""

import os
import subprocess
import sys

import psutil
import pytest

from harvest_lib.airflow.spark_job import SparkJobFailed, SparkJobRefused, run_spark_job
from harvest_lib.config import HarvestConfig, load
from harvest_lib.errors import FOUND_EXIT_CODE

pytestmark = pytest.mark.quick

CANARY = "canary-77a1"
JOB = """
import json, os, pathlib, signal, sys
_, option, file, *arguments = sys.argv
print("working")
if "code" in arguments[-1]:
    print("cause: it went wrong", file=sys.stderr)
    sys.exit(int(arguments[-1].removeprefix("code")))
if arguments[-1] == "waits":
    signal.pause()
if arguments[-1] == "silent":
    sys.exit()
path = pathlib.Path(file)
print(json.dumps({"arguments": arguments, "text": path.read_text(), "file": file,
                  "dsn": os.environ["HARVEST_DSN"], "subscription": os.environ.get("HARVEST_SUBSCRIPTION"),
                  "command": pathlib.Path("/proc/self/cmdline").read_text()}))
print("done")
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text(JOB)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HARVEST_DSN", "host=elsewhere")
    monkeypatch.setenv("HARVEST_SUBSCRIPTION", "of-the-worker")
    return HarvestConfig(
        leadership="solo",
        source="mark",
        data_source=f"host=db dbname=shop password='{CANARY} \\' x'",
        base_kafka_config={"bootstrap.servers": "kafka:9092", "sasl.password": CANARY},
        producer_kafka_config={"linger.ms": 5},
        outbox_table="eu.outbox",
        subscription="audits",
    )


def run(config, *arguments, well=()):
    lines = []
    return run_spark_job("stand_in", config, arguments, say=lines.append, well=well), lines


def test_the_job_gets_the_settings_in_a_file_in_memory(config, tmp_path, monkeypatch):
    found, lines = run(config, "--topic", "orders")
    assert found["arguments"] == ["--json", "--topic", "orders"]
    assert found["subscription"] is None, "a variable would override the file"
    assert CANARY not in found["command"]
    assert found["file"].startswith("/dev/fd/")
    assert (lines[0], lines[-1]) == ("working", "done")
    (tmp_path / "harvest.yaml").write_text(found["text"])
    monkeypatch.setenv("HARVEST_DSN", found["dsn"])
    monkeypatch.delenv("HARVEST_SUBSCRIPTION")
    read = load(tmp_path / "harvest.yaml").harvest
    for name in ("data_source", "base_kafka_config", "producer_kafka_config", "outbox_table", "subscription", "source"):
        assert getattr(read, name) == getattr(config, name)


@pytest.mark.parametrize("code", [1, 2, 5, 6, 10, 120, 137 - 9])
def test_a_job_that_fails_is_told_by_its_last_lines(config, code):
    with pytest.raises(SparkJobFailed, match="cause: it went wrong") as raised:
        run(config, f"code{code}", well=[FOUND_EXIT_CODE])
    assert not isinstance(raised.value, SparkJobRefused)


@pytest.mark.parametrize("code", [3, 4])
def test_what_no_retry_changes_is_refused(config, code):
    with pytest.raises(SparkJobRefused, match="it went wrong"):
        run(config, f"code{code}")


def test_a_job_that_printed_no_result_has_not_ended_well(config):
    with pytest.raises(SparkJobFailed, match="printed no result"):
        run(config, "silent")
    with pytest.raises(SparkJobFailed, match="printed no result"):
        run(config, f"code{FOUND_EXIT_CODE}", well=[FOUND_EXIT_CODE])


def test_the_job_ends_with_a_task_that_is_killed(config, tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from harvest_lib.airflow.spark_job import run_spark_job; from harvest_lib.config import HarvestConfig\n"
        "def say(line): print(line, flush=True)\n"
        "run_spark_job('stand_in', HarvestConfig(leadership='solo'), ['waits'], say=say)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout.readline() == "working\n"
        (job,) = psutil.Process(task.pid).children()
        task.kill()
    job.wait(60)


def test_the_job_ends_with_the_task(config):
    started = []

    def interrupt(line):
        started.append(line)
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        run_spark_job("stand_in", config, ["waits"], say=interrupt)
    assert started == ["working"]
    own = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True, check=False)
    assert "stand_in" not in own.stdout
