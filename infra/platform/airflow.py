"""Airflow as services on this machine: scheduler, DAG processor, triggerer and API server.

All settings are environment variables, so AIRFLOW_HOME contains no configuration that could be out of date. The login
is the user `admin` of Airflow's simple auth manager. Its password is generated once, and stored in a file that only the
owner can read.
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harvest_lib.errors import StackError
from harvest_lib.local_stack.passwords import kept_secret
from harvest_lib.local_stack.ports import keep_ports
from harvest_lib.local_stack.process import tail, through_child
from harvest_lib.local_stack.state import make_folder, make_private, private_log, write_private
from infra.platform.databases import sqlalchemy_url
from infra.platform.service import ServicePlan, ask

USER = "admin"

_MIGRATE_SECONDS = 300


class Airflow:
    """The Airflow of a state folder, with a folder of DAGs."""

    def __init__(self, state: Path, *, dags: Path | None = None) -> None:
        """Prepare; nothing is written yet. Without `dags`, Airflow reads the DAGs of this repository.

        Raises StackError if the folder does not exist or has no DAG.
        """
        self._home = state / "airflow"
        self._log = state / "logs" / "airflow-migrate.log"
        self._dags = _example_dags() if dags is None else checked_dags(dags)
        self._port = 0

    @property
    def url(self) -> str:
        """Address of the UI and of the API."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def password_file(self) -> Path:
        """JSON file with the password of the login, by user name."""
        return self._home / "passwords.json"

    def prepare(self) -> None:
        """Choose the port, and generate the login's password unless its file exists."""
        make_private(self._home)
        self._port = keep_ports(self._home / "ports.json", ["api"])["api"]
        if not self.password_file.exists():
            write_private(self.password_file, json.dumps({USER: kept_secret(self._home / "login")}) + "\n")
            (self._home / "login").unlink()

    def environment(self, dsn: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of Airflow's services. Call `prepare` before."""
        url = sqlalchemy_url(dsn, "postgresql+psycopg")
        settings: dict[str, dict[str, object]] = {
            "core": {
                "dags_folder": self._dags,
                "load_examples": False,
                "test_connection": "Enabled",  # every user that can log in here has all rights
                "executor": "LocalExecutor",
                "parallelism": 2,  # with the default of 32, idle workers take some GB
                "fernet_key": _fernet_key(self._home / "fernet.key"),
                "execution_api_server_url": f"{self.url}/execution/",
                "simple_auth_manager_users": f"{USER}:admin",
                "simple_auth_manager_passwords_file": self.password_file,
            },
            "database": {"sql_alchemy_conn": url, "sql_alchemy_conn_async": url},
            "api": {
                "host": "127.0.0.1",
                "port": self._port,
                "base_url": self.url,
                "workers": 1,
                "secret_key": kept_secret(self._home / "api.key"),
            },
            "api_auth": {"jwt_secret": kept_secret(self._home / "jwt.key")},
            "logging": {"base_log_folder": self._home / "logs"},
            # Search the folder for new files every ten seconds. The default of five minutes is long for a DAG's author.
            "dag_processor": {"parsing_processes": 1, "refresh_interval": 10},
        }
        variables = {
            f"AIRFLOW__{section.upper()}__{option.upper()}": str(value)
            for section, options in settings.items()
            for option, value in options.items()
        }
        return {**environment, **variables, "AIRFLOW_HOME": str(self._home)}

    def migrate(self, variables: Mapping[str, str]) -> None:
        """Migrate the database to this version of Airflow. Raises StackError, which names the log, if that fails."""
        make_folder(self._log.parent)
        with private_log(self._log) as log:
            try:
                done = subprocess.run(
                    through_child([sys.executable, "-m", "airflow", "db", "migrate"]),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(variables),
                    cwd="/",
                    timeout=_MIGRATE_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise self._not_migrated(f"it was not done within {_MIGRATE_SECONDS} s") from error
        if done.returncode != 0:
            raise self._not_migrated(tail(self._log))

    def plans(self, variables: Mapping[str, str]) -> list[ServicePlan]:
        """Return the plans of the services, the API server first. Call `prepare` and `migrate` before.

        The scheduler is last, because a task fails if it starts before the API server answers.
        """

        def plan(name: str, *arguments: str, **details: Any) -> ServicePlan:
            return ServicePlan(
                name=f"airflow-{name}",
                version=version("apache-airflow-core"),
                command=(sys.executable, "-m", "airflow", name, *arguments),
                environment=variables,
                **details,
            )

        return [
            plan("api-server", serves=self._answers, port=self._port, url=self.url),
            plan("dag-processor", serves=self._lives("dag_processor")),
            # The logs of both services are files on this machine, so no log server is needed.
            plan("triggerer", "--skip-serve-logs", serves=self._lives("triggerer")),
            plan("scheduler", "--skip-serve-logs", serves=self._lives("scheduler")),
        ]

    def _health(self, component: str) -> dict[str, Any]:
        answer = ask(f"{self.url}/api/v2/monitor/health")
        found: dict[str, Any] = (answer or {}).get(component) or {}
        return found if found.get("status") == "healthy" else {}

    def _answers(self, _: float) -> bool:
        return bool(self._health("metadatabase"))

    def _lives(self, component: str) -> Callable[[float], bool]:
        """Return a function that takes a start time. It returns True if the component is healthy and had a heartbeat
        since."""

        def lives(since: float) -> bool:
            heartbeat = self._health(component).get(f"latest_{component}_heartbeat")
            return heartbeat is not None and datetime.fromisoformat(heartbeat).timestamp() >= since

        return lives

    def _not_migrated(self, evidence: str) -> StackError:
        return StackError("Airflow's database could not be made", evidence=evidence, next_step=f"read {self._log}")


def dagster_connection(url: str) -> dict[str, str]:
    """Return the Airflow connection to a Dagster without login, as an environment variable."""
    scheme, _, address = url.partition("://")
    host, _, port = address.partition(":")
    connection = {"conn_type": "dagster", "schema": scheme, "host": host, "port": int(port)}
    return {"AIRFLOW_CONN_DAGSTER_DEFAULT": json.dumps(connection)}


def kafka_connections(bootstrap_servers: str) -> dict[str, str]:
    """Return the Airflow connections to Kafka that our DAGs use, as environment variables."""

    def connection(group: str) -> str:
        extra = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
        }
        return json.dumps({"conn_type": "kafka", "extra": extra})

    return {
        "AIRFLOW_CONN_HARVEST_KAFKA": connection("airflow-smoke-test"),
        "AIRFLOW_CONN_HARVEST_KAFKA_WATCH": connection("airflow-watch"),
    }


def checked_dags(folder: Path) -> Path:
    """Return the absolute path of a folder of DAGs. Raises StackError if it is no readable folder with a DAG."""
    path = folder.expanduser().resolve()
    if not path.is_dir():
        raise StackError(
            f"there is no folder {path}" if not path.exists() else f"{path} is not a folder",
            evidence=f"--dags {folder}, from {Path.cwd()}",
            next_step="name a folder that holds the Python files of your DAGs by --dags",
        )
    try:
        found = any(_may_hold_dag(file) for file in path.rglob("*.py"))
    except OSError as error:
        raise StackError(
            "the folder of DAGs cannot be read",
            evidence=f"{error.filename}: {error.strerror}",
            next_step="correct its rights, or name another folder by --dags",
        ) from error
    if not found:
        raise StackError(
            f"there is no DAG in {path}",
            evidence="Airflow reads Python files that contain the words `airflow` and `dag`, and it has none",
            next_step="write a DAG there (docs/airflow-dagster.md has one), or name another folder by --dags",
        )
    return path


def _may_hold_dag(file: Path) -> bool:
    """Return True if Airflow would search a file for DAGs, by the rule of its setting dag_discovery_safe_mode."""
    text = file.read_bytes().lower()
    return b"airflow" in text and b"dag" in text


def _example_dags() -> Path:
    """Return the folder with the DAGs of this repository."""
    return Path(__file__).resolve().parents[2] / "airflow_dags"


def _fernet_key(file: Path) -> str:
    if not file.exists():
        write_private(file, base64.urlsafe_b64encode(os.urandom(32)).decode())
    return file.read_text()
