"""Prometheus with the harvester's alert rules: its configuration and command, and the service of the platform."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from harvest_lib.errors import StackError
from harvest_lib.local_stack.ports import accepts, keep_ports
from harvest_lib.local_stack.state import make_private
from infra.monitoring.scaled_rules import FILE
from infra.platform.service import ServicePlan

JOB = "harvest"
"""Default job name of the harvesters in the rules and the dashboard."""
_SCRAPE_SECONDS = 5.0
_KEPT = "7d"
_RULES = "alerts.yml"


def find_prometheus() -> str:
    """Return the path of the program. Raises StackError if no Prometheus is installed."""
    program = shutil.which("prometheus")
    if program is None:
        raise StackError(
            "there is no Prometheus on this machine",
            evidence="no program `prometheus` on the path",
            next_step="install it (Debian: `apt-get install prometheus`; `make setup` does so as root)",
        )
    return program


def configure(folder: Path, jobs: Mapping[str, Sequence[str]], interval_seconds: float) -> None:
    """Write the configuration into a folder. Prometheus scrapes the targets of each job, and evaluates the rules, once
    per interval."""
    interval = f"{interval_seconds * 1000:.0f}ms"
    configuration = {
        "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), interval),
        "rule_files": [_RULES],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(targets)}]} for job, targets in jobs.items()
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration, sort_keys=False))


def prepared(
    program: str, folder: Path, rules: str, targets: Sequence[str], *, port: int, interval_seconds: float, kept: str
) -> tuple[str, ...]:
    """Write rules and configuration into a folder, and return the command that starts the server on a port. `targets`
    are the addresses of harvesters' metrics, and `kept` is the retention time."""
    (folder / _RULES).write_text(rules)
    configure(folder, {JOB: targets}, interval_seconds)
    return (
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--storage.tsdb.retention.time={kept}",
        f"--web.listen-address=127.0.0.1:{port}",
    )


class PlatformPrometheus:
    """The Prometheus of a state folder. It scrapes the harvester of Dagster's run at the address `listen`."""

    def __init__(self, state: Path) -> None:
        """Prepare; nothing is written yet. Raises StackError if no Prometheus is installed."""
        self._program = find_prometheus()
        self._home = state / "prometheus"
        self._ports: dict[str, int] = {}

    @property
    def listen(self) -> str:
        """Address of the harvester's metrics, as HOST:PORT."""
        return f"127.0.0.1:{self._ports['listen']}"

    @property
    def url(self) -> str:
        """Address of the UI."""
        return f"http://127.0.0.1:{self._ports['web']}"

    def prepare(self) -> None:
        """Choose the ports."""
        make_private(self._home)
        self._ports = keep_ports(self._home / "ports.json", ["web", "listen"])

    def plan(self, environment: dict[str, str]) -> ServicePlan:
        """Write the configuration, and return the plan of the service. Call `prepare` before."""
        port = self._ports["web"]
        return ServicePlan(
            name="prometheus",
            version=self._version(),
            command=prepared(
                self._program,
                self._home,
                FILE.read_text(),
                [self.listen],
                port=port,
                interval_seconds=_SCRAPE_SECONDS,
                kept=_KEPT,
            ),
            environment=environment,
            serves=lambda _: accepts(port),
            port=port,
            url=self.url,
        )

    def _version(self) -> str:
        said = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=False)
        first, _, rest = (said.stdout or said.stderr).partition("version ")
        return rest.split()[0] if first and rest else ""
