"""Everything at once: Postgres, Kafka, Dagster, Airflow and Spark, as `harvest platform` starts them."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.platform_api import AirflowApi, DagsterApi
from support.waiting import eventually

from harvest_lib.local_stack.description import running
from harvest_lib.local_stack.jars import POSTGRES_JDBC, kafka_jars, resolve, spark_kafka_jars
from harvest_lib.local_stack.java import find_java
from infra.chaos.prometheus import prometheus_lacking

HARVEST = Path(sys.executable).parent / "harvest"
_DAG = "harvest_flights_day"


@dataclass(frozen=True, kw_only=True)
class Platform:
    """Addresses of the platform's parts, of Prometheus where it is installed, and clients of their APIs."""

    dsn: str
    bootstrap_servers: str
    dagster_url: str
    airflow_url: str
    airflow_password: str
    prometheus_url: str | None
    dagster: DagsterApi
    airflow: AirflowApi
    home: Path

    def harvest(self, *arguments):
        """Run the command line as its user would, on this platform."""
        done = subprocess.run([HARVEST, *arguments], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def platform(parts, tmp_path_factory):
    """A platform of this session's own; the jars are shared."""
    home = tmp_path_factory.mktemp("platform")
    find_java(parts)
    for jars in (kafka_jars("4.3.1"), POSTGRES_JDBC, spark_kafka_jars()):
        resolve(jars, parts)
    if (parts / "java").exists():
        (home / "java").symlink_to(parts / "java")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("HARVEST_")]:
            patch.delenv(name)
        patch.setenv("HARVEST_HOME", str(home))
        try:
            observe = [] if prometheus_lacking() else ["--observe"]
            command = [HARVEST, "platform", *observe]
            up = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
            assert up.returncode == 0, up.stderr
            found = running(home)
            url = {server.name: server.url for server in found.servers}
            password = json.loads((home / "airflow" / "passwords.json").read_text())["admin"]
            for name, value in {
                "HARVEST_DSN": found.dsn,
                "HARVEST_BOOTSTRAP_SERVERS": found.bootstrap_servers,
                "HARVEST_LEADER_GROUP_ID": "harvest-local",
                "HARVEST_DELIVERY": "transactional",
            }.items():
                patch.setenv(name, value)
            yield Platform(
                dsn=found.dsn,
                bootstrap_servers=found.bootstrap_servers,
                dagster_url=url["dagster-webserver"],
                airflow_url=url["airflow-api-server"],
                airflow_password=password,
                prometheus_url=url.get("prometheus"),
                dagster=DagsterApi(url["dagster-webserver"]),
                airflow=AirflowApi(url["airflow-api-server"], password),
                home=home,
            )
        finally:
            try:
                subprocess.run([HARVEST, "down"], capture_output=True, timeout=300, check=False)
            finally:
                if left := running(home):
                    os.kill(left.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def loaded(platform):
    """A day from its source to the proof: the DAG run succeeds."""
    eventually(lambda: _DAG in platform.airflow.dags(), "the DAGs are there", seconds=120)
    run = platform.airflow.start(_DAG, {"day": "2013-01-01"})
    ended = eventually(
        lambda: (s := platform.airflow.state(_DAG, run)) in {"success", "failed"} and s, "it ends", seconds=800
    )
    assert ended == "success", platform.airflow.tasks(_DAG, run)
