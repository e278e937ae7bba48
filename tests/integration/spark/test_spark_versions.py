"""Every line of Spark that the extra allows: sink, writing, reading, streams and audit work with each."""

import os
import subprocess

import pytest
from support.installed import ROOT, build, find_uv, install

from harvest_lib.local_stack.jars import TESTED_SPARK

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(3_000)]

LOCKED = "4.1"  # all other tests run with it
MODULES = (
    "test_audit.py",
    "test_batch_reports.py",
    "test_column_names.py",
    "test_data_source_writing.py",
    "test_harvested.py",
    "test_harvested_stream.py",
    "test_outbox_connect.py",
    "test_outbox_reader.py",
    "test_outbox_sink.py",
    "test_outbox_stream_reader.py",
    "test_outbox_writes.py",
    "test_replay.py",
    "test_restored.py",
    "test_snapshot_option.py",
    "test_topic_reader.py",
)


@pytest.mark.parametrize("line", [each for each in TESTED_SPARK if each != LOCKED])
def test_the_tests_of_spark_pass(line, parts, tmp_path):
    uv, venv = find_uv(parts), tmp_path / "venv"
    install(uv, build(uv, tmp_path), venv, "archive", "dev", "local", "quality", "spark")
    replaced = [uv, "pip", "install", "--quiet", "--python", venv / "bin" / "python", f"pyspark[connect]=={line}.*"]
    subprocess.run(replaced, check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HARVEST_", "PYTEST_"))}
    done = subprocess.run(
        [
            *(venv / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long"),
            *(f"tests/integration/spark/{module}" for module in MODULES),
        ],
        cwd=ROOT,
        env={**kept, "HARVEST_HOME": str(parts)},
        capture_output=True,
        text=True,
        check=False,
        timeout=2_400,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
