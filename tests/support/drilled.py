"""A pool that is used and watched by a Prometheus with our rules, and an operator who types what a runbook says."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml
from psycopg.conninfo import conninfo_to_dict
from support.runbooks import filled, runbook, sections

from harvest_lib.local_stack.ports import keep_ports
from infra.chaos.alert_matrix import ALLOWED_SECONDS, scaled_rules_of_run, targets_of
from infra.chaos.prometheus import Prometheus
from infra.platform.prometheus import JOB
from infra.waiting import until

_PG = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}
_SAMPLED_SECONDS = 90.0
"""A sample of what is rarely asked is up to a minute old."""
_OWN = ("dataSource", "baseKafkaConfig")
_NOT_FOUND, _NOT_EXECUTABLE, _USAGE = 127, 126, 2
_COMMAND_SECONDS = 60.0
_SERVICE = """#!/bin/sh
# What `systemctl restart` of the pool's unit does here: the drill starts again what ends.
[ "$1 $2" = "restart harvest@*" ] || exit 5
kill -TERM $(cat {pids})
"""


class Drilled:
    """One alert of a pool that is under load. Its processes are restarted by `supervise`, as a service's are."""

    def __init__(self, load, prometheus, folder, reader):
        self.load, self.system, self.prometheus = load, load.system, prometheus
        self.reader = reader
        """Address of a reader for Prometheus, once there is one."""
        self._folder = folder
        self.config = folder / "harvest.yaml"
        self.config.write_text(load.system.operator_config().read_text())
        self.is_supervised = False
        self._pids = folder / "pids"
        (folder / "bin").mkdir()
        self.command("systemctl", _SERVICE.format(pids=self._pids))
        self._started = []
        self.variables = {}
        """Variables that commands have beside those of a pool's operator."""

    def observe(self, job):
        """Have Prometheus scrape the reader under the name of a job."""
        self.prometheus.scrape({JOB: targets_of(self.load), job: [self.reader]})
        self.await_said(f'absent(up{{job="{JOB}", instance="{self.reader}"}})')

    def command(self, name, script):
        """Have a command on the path of the operator."""
        file = self._folder / "bin" / name
        file.write_text(script)
        file.chmod(0o755)

    def settings(self, change):
        """Change what `harvest.yaml` says."""
        said = yaml.safe_load(self.config.read_text())
        change(said["harvest"])
        self.config.write_text(yaml.safe_dump(said))

    @contextmanager
    def reconfigured(self, change):
        """Have the pool run with other settings, and start again what ends; afterwards with those it had."""
        self.settings(change)
        self.is_supervised = True
        try:
            for member in self.system.members:
                member.harvester.process.stop()
            self.supervise()
            yield
        finally:
            self.restore()

    def restore(self):
        """Have the pool run with the settings it had, and end when it is ended."""
        self.is_supervised = False
        for member in self.system.members:
            member.harvester.process.stop()
            self.system.start_member(member)

    def await_said(self, expression):
        """Wait until an expression of Prometheus has a value."""

        def is_said():
            self.supervise()
            return self.prometheus.query(expression)

        until(is_said, _SAMPLED_SECONDS, f"no {expression}", next_step="", evidence=self._said)

    def supervise(self):
        """Start processes that have ended again, with the configuration that there is and by links of their own."""
        for member in self.system.members if self.is_supervised else ():
            if not member.is_up:
                own = yaml.safe_load((self.system.folder / f"{member.name}.yaml").read_text())["harvest"]
                said = yaml.safe_load(self.config.read_text())["harvest"]
                said |= {name: own[name] for name in _OWN}
                member.start(yaml.safe_dump({"harvest": said}), self.system.mode.hand_over)
        new = self._pids.with_suffix(".new")  # the command may read it meanwhile
        new.write_text(" ".join(str(each.harvester.process.pid) for each in self.system.members if each.is_up))
        new.replace(self._pids)

    def await_firing(self, alert, seconds):
        """Wait until an alert fires; return its labels."""
        return until(lambda: self._firing(alert), seconds, f"{alert} does not fire", next_step="", evidence=self._said)

    def follow(self, alert, step, labels, seconds, corrects):
        """Run what the alert's runbook has; return once the alert has ended. `corrects` is called before the step."""
        book = runbook(sections()[alert])
        for command in filled(book.look, labels).splitlines():
            done = self._begin(command)
            until(lambda done=done: done.poll() is not None, _COMMAND_SECONDS, f"{command} goes on", next_step="")
            assert done.returncode not in {_NOT_FOUND, _NOT_EXECUTABLE, _USAGE}, self._output(done)
        assert self._firing(alert), f"{alert} has ended by itself"
        corrects(self)
        working = self._begin(filled(book.steps[step], labels))

        def is_over():
            self.supervise()
            assert working.poll() in {None, 0}, self._output(working)
            return not self._firing(alert)

        until(is_over, seconds, f"{alert} does not end", next_step="", evidence=self._said)
        assert working.poll() in {None, 0}, self._output(working)

    def end(self):
        """End what the runbook's commands have started and that still runs."""
        for each in self._started:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()

    def _firing(self, alert):
        self.supervise()
        found = [each["labels"] for each in self.prometheus.alerts() if each["state"] == "firing"]
        return next((labels for labels in found if labels["alertname"] == alert), None)

    def _said(self):
        return str([(each["state"], each["labels"], each["value"]) for each in self.prometheus.alerts()])

    def _begin(self, commands):
        number = len(self._started)
        with (self._folder / f"command-{number}.log").open("w") as log:
            process = subprocess.Popen(
                ["/bin/bash", "-eu", "-o", "pipefail", "-c", commands],
                cwd=self._folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.log = log.name
        self._started.append(process)
        return process

    def _output(self, process):
        return f"{process.args[-1]} ended with {process.returncode}: {Path(process.log).read_text()[-2000:]}"

    def environment(self):
        """Return the environment of an operator's shell."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HARVEST_", "PG"))}
        said = conninfo_to_dict(self.system.dsn)
        path = [str(self._folder / "bin"), str(Path(sys.executable).parent), kept["PATH"]]
        place = self.system.members[0]  # whose address is free once its process has ended
        listens = {} if place.is_up else {"HARVEST_LISTEN": f"127.0.0.1:{place.port}"}
        return {
            **kept,
            **{_PG[name]: str(said[name]) for name in _PG if name in said},
            **listens,
            "BROKERS": self.system.kafka.bootstrap_servers,
            "PATH": ":".join(path),
            **self.variables,
        }


@contextmanager
def drilled(load, folder, factor):
    """Watch a system by rules whose times are divided by a factor."""
    rules, said = scaled_rules_of_run(factor)
    reader = f"127.0.0.1:{keep_ports(folder / 'reader.json', ['reader'])['reader']}"
    targets = [*targets_of(load), reader]
    with Prometheus(folder / "prometheus", rules, targets, interval_seconds=1.0) as prometheus:
        drill = Drilled(load, prometheus, folder, reader)
        try:
            yield drill, said
        finally:
            drill.end()


def due(rule):
    """Return how long an alert may take to fire, and to end."""
    return rule.due_seconds + 9 * ALLOWED_SECONDS, rule.window_seconds + 9 * ALLOWED_SECONDS
