"""Under `spark-submit` a job takes master and settings from there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import default_state

pytestmark = [pytest.mark.full, pytest.mark.spark]

JOB = """
import json
from pathlib import Path
from harvest_lib.spark.session import jdbc_jars, spark_session

with spark_session(jars=jdbc_jars(None), work_folder=Path("."), app_name="job") as spark:
    names = ("spark.master", "spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.app.name")
    print(json.dumps({name: spark.conf.get(name) for name in names}))
"""


@pytest.fixture
def submit(tmp_path):
    def run(*arguments):
        command = Path(sys.executable).with_name("spark-submit")
        environment = {**os.environ, "JAVA_HOME": str(find_java(default_state())), "PYSPARK_PYTHON": sys.executable}
        environment.pop("HARVEST_SPARK_JARS", None)
        done = subprocess.run(
            [command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


def test_master_and_settings_are_those_that_were_submitted(submit, tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    said = submit(
        *("--master", "local[1]", "--name", "nightly", "--conf", "spark.sql.shuffle.partitions=77"),
        *("--conf", "spark.sql.session.timeZone=Asia/Tokyo", "--conf", "spark.ui.enabled=false", "job.py"),
    )
    assert json.loads(said.splitlines()[-1]) == {
        "spark.master": "local[1]",
        "spark.sql.shuffle.partitions": "77",
        "spark.sql.session.timeZone": "UTC",
        "spark.app.name": "nightly",
    }
