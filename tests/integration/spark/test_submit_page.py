"""The commands of docs/spark-submit.md, run as they stand as far as one machine allows."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest
import yaml
from support.installed import find_uv
from support.outbox_format import ROOT, environment, target
from support.sink import Database
from support.spark import all_jars
from support.subscribed import Subscribed

from harvest_lib.local_stack.java import find_java

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(600)]  # the first use of uv may download

PAGE = (ROOT / "docs" / "spark-submit.md").read_text(encoding="utf-8")
SPARK = Path(pyspark.__file__).parent
TEN_ROWS = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession

import harvest_lib.spark.data_source

assert Path(harvest_lib.__file__).is_relative_to(sys.argv[1]), harvest_lib.__file__
assert sys.executable == os.environ["PYSPARK_PYTHON"]
spark = SparkSession.builder.getOrCreate()
frame = spark.range(10).selectExpr("CAST(id AS string) AS key")
into = {"batchId": "ten", "topic": "orders", "key": "key"}
frame.write.format("outbox").options(**into).mode("append").save()
"""


def block(kind, after):
    """Return the first code block of a kind behind a heading of the page."""
    return re.search(rf"^```{kind}\n(.*?)^```", PAGE[PAGE.index(f"\n{after}\n") :], re.MULTILINE | re.DOTALL)[1]


def run(command, **variables):
    return subprocess.run(
        command, shell=isinstance(command, str), cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )


@pytest.fixture
def home(tmp_path):
    """Spark as an image has it, in `opt/spark` of a folder: pyspark is no package of a Python, but in archives."""
    made = tmp_path / "opt" / "spark"
    (made / "python" / "lib").mkdir(parents=True)
    for name in ("bin", "jars"):
        (made / name).symlink_to(SPARK / name)
    for package, archive in (("pyspark", "pyspark.zip"), ("py4j", archive_of_py4j())):
        with zipfile.ZipFile(made / "python" / "lib" / archive, "w") as packed:
            for path in (SPARK.parent / package).rglob("*"):
                if path.suffix in {".py", ".json"} and "jars" not in path.parts:
                    packed.write(path, path.relative_to(SPARK.parent))
    return made


def archive_of_py4j():
    """Return the name that Spark's own programs give to the archive of py4j."""
    return re.search(r"py4j-[\d.]+-src\.zip", (SPARK / "bin" / "pyspark").read_text())[0]


def test_the_image_is_built_and_writes(parts, dsn, home, tmp_path):
    steps = re.findall(
        r"^(FROM|USER|COPY|ENV|RUN) (.*)$", block("dockerfile", "## Kubernetes").replace("\\\n", ""), re.M
    )
    words = {name: rest for name, rest in steps if name != "USER"}
    assert [name for name, _ in steps] == ["FROM", "USER", "COPY", "ENV", "RUN", "USER"]
    assert re.fullmatch(r"apache/spark:4\.1\.\d+-scala2\.13-java17-python3-ubuntu", words["FROM"])

    def here(text):
        return text.replace("/opt/", f"{tmp_path}/opt/")

    assert words["COPY"].split() == [".", "/opt/outbox-harvester"]
    ignored = shutil.ignore_patterns(".git", ".harvest", ".*_cache", "__pycache__")
    shutil.copytree(ROOT, here(words["COPY"].split()[1]), ignore=ignored)
    variables = dict(word.split("=", 1) for word in here(words["ENV"]).split())
    brings_uv, others = here(words["RUN"]).split(" && ", 1)
    assert brings_uv == "pip3 install uv"
    path = f"{Path(find_uv(parts)).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HARVEST_", "PYTHON", "UV_PYTHON"))
    }
    built = run(others, **(kept | variables | {"PATH": path}))
    if "Failed to download" in built.stderr and "python-build-standalone" in built.stderr:
        # uv's own Pythons cannot be downloaded everywhere: the rest of the line is run with the Python of this process.
        others = others.replace("--managed-python --python 3.12", f"--python {sys.executable}")
        built = run(others, **(kept | variables | {"PATH": path}))
    assert built.returncode == 0, built.stderr[-3_000:]

    database, options = Database(dsn, "native"), target(dsn)
    program = tmp_path / "program.py"
    program.write_text(TEN_ROWS)
    given = {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(find_java(parts)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HARVEST_DSN": options["dsn"],
        "PGPASSWORD": options["password"],
    }
    settings = ("--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", f"spark.local.dir={tmp_path}")
    done = run(
        [home / "bin" / "spark-submit", *settings, program, tmp_path / "opt" / "python"], **(kept | variables | given)
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert sorted(key for key, *_ in database.records()) == [str(number) for number in range(10)]
    database.connection.close()


@pytest.fixture
def delivered(dsn, make_topic, bootstrap_servers, group_id):
    """An outbox whose records are delivered."""
    made = Subscribed(dsn, make_topic(partitions=2), bootstrap_servers, group_id)
    made.write("a", "b")
    made.harvest(delivery="transactional").drain(60)
    yield made
    made.close()


@pytest.fixture
def submit(parts, delivered, tmp_path):
    """Run a `spark-submit` of the page on this machine: local, with jars that are here, and with the configuration."""
    harvest = {
        "baseKafkaConfig": {"bootstrap.servers": delivered.servers},
        "leaderGroupID": delivered.group,
        "dataSource": delivered.dsn,
        "delivery": "transactional",
    }
    (tmp_path / "harvest.yaml").write_text(yaml.safe_dump({"harvest": harvest}))

    def submitted(command):
        packages = f"--jars {','.join(map(str, all_jars()))}"
        command = command.replace("spark://spark.example.com:7077", "'local[2]'").replace("\\\n", " ")
        command = re.sub(r"--packages \S+", packages, command).replace("harvest.yaml", str(tmp_path / "harvest.yaml"))
        command = command.replace("--topic orders", f"--topic {delivered.topic}")
        assert command.startswith("spark-submit ")
        kept = {name: value for name, value in environment().items() if not name.startswith("HARVEST_")}
        return run(f"{SPARK}/bin/{command}", **kept)

    return submitted


def test_audit_and_replay_are_submitted_as_typed(submit):
    audit, replay = re.split(r"\n(?=spark-submit)", block("sh", "## Audit and replay").rstrip("\n"))
    done = submit(audit)
    assert (done.returncode, "all is well" in done.stdout) == (0, True), done.stdout + done.stderr[-3_000:]
    done = submit(replay)
    assert (done.returncode, "--subscription" in done.stdout) == (0, True), done.stdout + done.stderr[-3_000:]


def test_a_job_outside_a_clone_passes_the_exit_code_on(submit, tmp_path):
    (tmp_path / "job.py").write_text(block("python", "## Audit and replay"))
    audit = f"spark-submit --master 'local[2]' --packages x {tmp_path / 'job.py'} -f harvest.yaml --topic "
    done = submit(f"{audit}nowhere")
    assert (done.returncode, "error: " in done.stdout) == (6, True), done.stdout + done.stderr[-3_000:]
