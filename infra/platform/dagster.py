"""Dagster as services on this machine: the code server, the webserver and the daemon.

The code server is a separate process, as in production. Runs belong to it, so they continue when the webserver or the
daemon is restarted. Dagster stores its data in a Postgres database; DAGSTER_HOME contains its configuration and the
output of runs.
"""

import importlib.util
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import yaml
from psycopg.conninfo import conninfo_to_dict

from harvest_lib.errors import StackError
from harvest_lib.local_stack.ports import accepts, keep_ports
from harvest_lib.local_stack.state import make_private, write_private
from infra.platform.service import ServicePlan, ask

LOCATION = "harvest"
"""Name of the stack's code location in Dagster."""

_PASSWORD = "DAGSTER_POSTGRES_PASSWORD"  # noqa: S105 - the variable's name
_LOADED = (
    "{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError { __typename"
    " ... on PythonError { message } } } } } }"
)
_HEALTH = "{ instance { daemonHealth { allDaemonStatuses { required healthy lastHeartbeatTime } } } }"


class Dagster:
    """The Dagster of a state folder, which serves the definitions of a module."""

    def __init__(self, state: Path, *, definitions: str) -> None:
        """Prepare; nothing is written yet. Raises StackError if the module does not exist."""
        check_module(definitions, "--definitions")
        self._definitions = definitions
        self._home = state / "dagster"
        self._ports: dict[str, int] = {}

    @property
    def url(self) -> str:
        """Address of the UI and of GraphQL."""
        return f"http://127.0.0.1:{self._ports['webserver']}"

    def prepare(self) -> None:
        """Choose the ports."""
        make_private(self._home)
        self._ports = keep_ports(self._home / "ports.json", ["webserver", "code"])

    def plans(self, dsn: str, environment: Mapping[str, str]) -> list[ServicePlan]:
        """Write the configuration, and return the plans of the services. Call `prepare` before."""
        database = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
        write_private(self._home / "dagster.yaml", _instance(database))
        write_private(self._home / "workspace.yaml", _workspace(self._ports["code"]))
        variables = {
            **environment,
            "DAGSTER_HOME": str(self._home),
            _PASSWORD: database["password"],
            "DAGSTER_URL": self.url,
        }
        workspace = ("-w", str(self._home / "workspace.yaml"))
        address = ("-h", "127.0.0.1", "-p")

        def plan(name: str, *arguments: str, **details: object) -> ServicePlan:
            return ServicePlan(
                name=f"dagster-{name}",
                version=version("dagster"),
                command=(sys.executable, *arguments),
                environment=variables,
                **details,  # type: ignore[arg-type]
            )

        code, web = self._ports["code"], self._ports["webserver"]
        daemon = str(Path(sysconfig.get_path("scripts"), "dagster-daemon"))
        return [
            plan(
                "code",
                *("-m", "dagster", "code-server", "start", "--use-python-environment-entry-point"),
                *("-m", self._definitions, "--location-name", LOCATION, *address, str(code)),
                serves=lambda _: accepts(code),
                port=code,
            ),
            plan(
                "webserver",
                *("-m", "dagster_webserver", *address, str(web), *workspace),
                serves=self._web_serves,
                port=web,
                url=self.url,
            ),
            plan("daemon", daemon, "run", *workspace, serves=self._daemon_serves),
        ]

    def _web_serves(self, _: float) -> bool:
        """Return True if the webserver answers and has finished loading the definitions, successfully or not."""
        answer = ask(f"{self.url}/graphql", {"query": _LOADED})
        return bool(answer) and all(
            entry["locationOrLoadError"] for entry in answer["data"]["workspaceOrError"]["locationEntries"]
        )

    def _daemon_serves(self, since: float) -> bool:
        """Return True if all required parts of the daemon are healthy, each with a heartbeat at or after `since`."""
        answer = ask(f"{self.url}/graphql", {"query": _HEALTH})
        statuses = answer["data"]["instance"]["daemonHealth"]["allDaemonStatuses"] if answer else []
        required = [status for status in statuses if status["required"]]
        return bool(required) and all(
            status["healthy"] and (status["lastHeartbeatTime"] or 0) >= since for status in required
        )


def check_module(name: str, option: str) -> None:
    """Raise StackError, which names the option, if a module does not exist."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise StackError(
            f"there is no module {name}",
            evidence="it cannot be found on this Python's path",
            next_step=f"name another module by {option}",
        )


def _instance(database: Mapping[str, str]) -> str:
    parameters = {name: value for name, value in database.items() if name in {"sslmode", "connect_timeout"}}
    postgres = {
        "hostname": database["host"],
        "port": int(database.get("port", "5432")),
        "username": database["user"],
        "password": {"env": _PASSWORD},
        "db_name": database["dbname"],
        "params": parameters,
    }
    return yaml.safe_dump(
        {
            "storage": {"postgres": {"postgres_db": postgres}},
            "telemetry": {"enabled": False},
            "nux": {"enabled": False},
        },
        sort_keys=False,
    )


def _workspace(port: int) -> str:
    server = {"host": "127.0.0.1", "port": port, "location_name": LOCATION}
    return yaml.safe_dump({"load_from": [{"grpc_server": server}]}, sort_keys=False)
