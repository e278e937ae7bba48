"""A real Dagster: an instance in a folder, its daemon process, and code locations in processes of their own."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

LOCATION = Path(__file__).parent / "dagster_location.py"
_ACTIVE = [DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]


class Platform:
    """Starts on entry; on exit every process that it has started is ended, those of runs too."""

    def __init__(self, folder, *, locations=("first",), file=LOCATION, **variables):
        self.folder = folder
        folder.mkdir()
        (folder / "dagster.yaml").write_text("telemetry:\n  enabled: false\nnux:\n  enabled: false\n")
        lines = ["load_from:"]
        for name in locations:
            lines.append(f"  - python_file: {{relative_path: {file}, location_name: {name}}}")
        (folder / "workspace.yaml").write_text("\n".join(lines) + "\n")
        root = Path(__file__).parents[2]
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")},
            "DAGSTER_HOME": str(folder),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": str(root),
            **variables,
        }
        self._daemon = None
        self._known = set()  # of psutil's processes, which tell theirs from one that was given the same number later

    def __enter__(self):
        self._log = (self.folder / "daemon.log").open("ab")
        self.instance = DagsterInstance.from_config(str(self.folder))
        self.start_daemon()
        return self

    def __exit__(self, *_):
        self._note()
        for process in self._known:  # frozen or not, under any parent
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._daemon.wait(60)
        psutil.wait_procs(list(self._known), timeout=60)
        self.instance.dispose()
        self._log.close()

    def start_daemon(self):
        self._daemon = subprocess.Popen(
            [sys.executable, Path(sys.executable).with_name("dagster-daemon"), "run", "-w", "workspace.yaml"],
            cwd=self.folder,
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
        )
        self._known.add(psutil.Process(self._daemon.pid))

    def kill_daemon(self):
        """Kill Dagster's daemon process, and nothing else."""
        self._note()
        self._daemon.send_signal(signal.SIGKILL)
        self._daemon.wait(60)

    def kill(self, pid):
        """Kill a process of ours, and no other that may have its number."""
        self._note()
        (process,) = [each for each in self._known if each.pid == pid and each.is_running()]
        process.kill()

    def code_servers(self):
        """The processes of the code locations."""
        self._note()
        return [process for process in self._known if _is_code_server(process)]

    def active_runs(self, job="shop_harvester_daemon"):
        return self.instance.get_runs(RunsFilter(job_name=job, statuses=_ACTIVE))

    def log(self):
        return (self.folder / "daemon.log").read_text()

    def _note(self):
        """Remember every process below the daemon, before a parent goes and they become somebody else's."""
        for parent in list(self._known):
            with suppress(psutil.NoSuchProcess):
                self._known.update(parent.children(recursive=True))


def _is_code_server(process):
    with suppress(psutil.NoSuchProcess):
        words = process.cmdline()
        return "api" in words and "grpc" in words
    return False
