"""The platform on the local stack: Dagster and Airflow, which store their data in the local Postgres, and Prometheus.

Its services start in parallel, except Airflow's scheduler, which starts when Airflow's API server answers. Each failure
names the log to read. If the process that runs the platform dies, from any cause, a guard ends all services.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harvest_lib.errors import StackError
from harvest_lib.local_stack.description import Server
from harvest_lib.local_stack.jars import POSTGRES_JDBC, resolve, spark_kafka_jars
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import make_folder
from infra.platform import example
from infra.platform.airflow import USER, Airflow, dagster_connection, kafka_connections
from infra.platform.dagster import Dagster
from infra.platform.databases import own_database
from infra.platform.prometheus import PlatformPrometheus
from infra.platform.service import Service

_STARTS = 3

DEFINITIONS = "dagster_harvest.example_flights.definitions"
LOGIN, DAGS = "Airflow login", "DAGs"
"""Titles of the notes about the login and about the folder of DAGs."""


class Platform:
    """The services of the platform, from `start` to `stop`."""

    def __init__(
        self,
        state: Path,
        *,
        definitions: str = DEFINITIONS,
        dags: Path | None = None,
        parts: Path | None = None,
        airflow: bool = True,
        observe: bool = False,
    ) -> None:
        """Prepare; nothing is written or started yet.

        `definitions` is the module that Dagster serves. `dags` is the folder that Airflow reads, by default our DAGs.
        `parts` is the folder of downloads, by default the state folder. If `airflow` is false, Airflow is left out. If
        `observe` is true, a Prometheus scrapes the run that harvests. Raises StackError if a module, a folder or a
        program is missing.
        """
        self._state = state
        self._parts = parts or state
        self._definitions = definitions
        self._dagster = Dagster(state, definitions=definitions)
        self._dags = dags
        self._airflow = Airflow(state, dags=dags) if airflow else None
        self._prometheus = PlatformPrometheus(state) if observe else None
        self._services: list[Service] = []
        self._guard: subprocess.Popen[str] | None = None

    def start(self, *, dsn: str, bootstrap_servers: str) -> None:
        """Start all services, and wait until they serve. Postgres and Kafka must answer. Raises StackError; call `stop`
        then.

        If another process has taken a port since the port was chosen, all services start again on other ports.
        """
        for last in (False,) * (_STARTS - 1) + (True,):
            try:
                self._start(dsn, bootstrap_servers)
            except StackError:
                if last or not any(service.found_port_taken for service in self._services):
                    raise
                self.stop()
            else:
                return

    def _start(self, dsn: str, bootstrap_servers: str) -> None:
        passwords = make_folder(self._state / "passwords")
        passwords.chmod(0o700)
        self._dagster.prepare()
        if self._prometheus:
            self._prometheus.prepare()
        environment = self._environment(dsn, bootstrap_servers)
        dagster = own_database(dsn, "harvest_dagster", password_file=passwords / "dagster")
        if self._definitions == DEFINITIONS:
            example.prepare(dsn, bootstrap_servers)
        self._spawn_guard()
        # Dagster starts while Airflow's migration runs, which takes some seconds.
        observed = {"HARVEST_LISTEN": self._prometheus.listen} if self._prometheus else {}
        plans = self._dagster.plans(dagster, environment | observed)
        if self._prometheus:
            plans.append(self._prometheus.plan({"PATH": os.environ["PATH"]}))
        self._spawn([Service(plan, logs=self._logs) for plan in plans])
        if self._airflow:
            self._airflow.prepare()
            airflow = own_database(dsn, "harvest_airflow", password_file=passwords / "airflow")
            variables = self._airflow.environment(airflow, environment)
            self._airflow.migrate(variables)
            server, *others, scheduler = [Service(plan, logs=self._logs) for plan in self._airflow.plans(variables)]
            self._spawn([server, *others])
            server.await_ready()
            self._spawn([scheduler])
        for service in self._services:
            service.await_ready()

    def revive(self) -> list[str]:
        """Restart the services that have ended by themselves, and return their names."""
        ended = [service for service in self._services if service.pid is None]
        for service in ended:
            self._end(service)  # ends the processes that it left behind
            self._begin(service)
        return [service.plan.name for service in ended]

    def stop(self) -> None:
        """End all services and their child processes, by SIGTERM and then by force. Does nothing if none runs."""
        # All services are requested to stop before any is awaited, so that none starts another run or task.
        for service in self._services:
            service.begin_stop()
        for service in self._services:
            self._end(service)
        self._services = []
        if self._guard:
            self._guard.communicate()  # closes the guard's input, which ends the guard
            self._guard = None

    def describe(self) -> tuple[Server, ...]:
        """Return the running services with their addresses."""
        return tuple(service.describe() for service in self._services if service.pid)

    def notes(self) -> dict[str, str]:
        """Return notes for the user: Airflow's login with the file of its password, and the user's folder of DAGs."""
        login = {LOGIN: f"{USER}, password in {self._airflow.password_file}"} if self._airflow else {}
        return login | ({DAGS: str(self._dags)} if self._dags else {})

    @property
    def dagster_url(self) -> str:
        """Address of Dagster. It is defined after `start`."""
        return self._dagster.url

    @property
    def _logs(self) -> Path:
        return self._state / "logs"

    def _spawn(self, services: list[Service]) -> None:
        for service in services:
            self._services.append(service)
            self._begin(service)

    def _spawn_guard(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "infra.platform.guard"],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _path()},
            cwd="/",
        )

    def _begin(self, service: Service) -> None:
        service.spawn()
        self._tell(f"{service.session}")

    def _end(self, service: Service) -> None:
        session = service.session
        service.stop()
        self._tell(f"-{session}")

    def _tell(self, line: str) -> None:
        if self._guard and self._guard.stdin:
            self._guard.stdin.write(f"{line}\n")
            self._guard.stdin.flush()

    def _environment(self, dsn: str, bootstrap_servers: str) -> dict[str, str]:
        """Return the environment of all services, with the addresses of servers and the variables that Spark needs."""
        java_home = find_java(self._parts)
        foreign = ("AIRFLOW", "DAGSTER", "PG")
        users = ("AIRFLOW_CONN_", "AIRFLOW_VAR_")  # for the user's own DAGs
        kept = {
            name: value for name, value in os.environ.items() if name.startswith(users) or not name.startswith(foreign)
        }
        return {
            **kept,
            **_without_proxy(kept),
            **kafka_connections(bootstrap_servers),
            **dagster_connection(self._dagster.url),
            **example.variables(kept, is_ours=self._definitions == DEFINITIONS),
            "HARVEST_DSN": dsn,
            "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers,
            "HARVEST_HOME": str(self._state),
            "HARVEST_SPARK_JARS": os.environ.get("HARVEST_SPARK_JARS", "")
            or ",".join(str(jar) for jars in (POSTGRES_JDBC, spark_kafka_jars()) for jar in resolve(jars, self._parts)),
            "DAGSTER_URL": self._dagster.url,
            "JAVA_HOME": str(java_home),
            "PYTHONPATH": _path(),
            "PYTHONUNBUFFERED": "1",  # so that the log of a killed process is complete
        }


def _path() -> str:
    """Return PYTHONPATH for the services, which run in another folder but must find the same modules."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    entries = [Path.cwd(), Path(__file__).resolve().parents[2], *(Path(entry).resolve() for entry in known if entry)]
    return os.pathsep.join(dict.fromkeys(map(str, entries)))


def _without_proxy(variables: Mapping[str, str]) -> dict[str, str]:
    """Return NO_PROXY, extended by this machine's addresses, because the services connect to each other."""
    known = variables.get("NO_PROXY") or variables.get("no_proxy") or ""
    direct = ",".join(part for part in (known, "127.0.0.1", "localhost") if part)
    return {"NO_PROXY": direct, "no_proxy": direct}
