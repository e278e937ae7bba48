"""An Airflow of a test's own: its services on a database in Postgres, which are killed and started again."""

import os
import signal
import uuid
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg

from infra.platform import sessions
from infra.platform.airflow import Airflow
from infra.platform.databases import own_database
from infra.platform.service import Service

ROOT = Path(__file__).parents[2]
_SETTINGS = {
    # So that what was killed is followed within seconds.
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "4",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "6",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE": "200",
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
}


class Services:
    """The running services of an Airflow, and its database."""

    def __init__(self, made, variables, dsn, logs):
        self.logs = logs
        self.variables = variables
        self.connection = psycopg.connect(dsn, autocommit=True)
        self._services = {each.name: Service(each, logs=logs) for each in made.plans(variables)}

    def start(self, *names):
        """Start services, all if none is named, and wait until they serve."""
        for each in [self._services[f"airflow-{name}"] for name in names] or self._services.values():
            each.spawn()
            each.await_ready()

    def spawn(self, name):
        """Start a service, and do not wait."""
        self._services[f"airflow-{name}"].spawn()

    def kill(self, name):
        """Kill a service by SIGKILL, and then what it leaves."""
        service = self._services[f"airflow-{name}"]
        os.kill(service.pid, signal.SIGKILL)
        sessions.signal_all([service.session], signal.SIGKILL)
        service.stop()

    def stop(self):
        for each in reversed(self._services.values()):
            each.begin_stop()
        for each in reversed(self._services.values()):
            each.stop()
        self.connection.close()

    def said(self, name):
        return (self.logs / f"airflow-{name}.log").read_text()

    def query(self, statement, *values):
        return self.connection.execute(statement, values or None).fetchall()

    def payloads(self, asset):
        """Return the payloads of an asset's events, in their order."""
        return [
            payload
            for (payload,) in self.query(
                "SELECT e.extra::jsonb -> 'payload' FROM asset_event e JOIN asset a ON a.id = e.asset_id"
                " WHERE a.uri LIKE %s ORDER BY e.id",
                asset,
            )
        ]

    def tasks(self):
        """Return the command lines of the processes of tasks."""
        scheduler = psutil.Process(self._services["airflow-scheduler"].pid)
        found = [" ".join(each.cmdline()) for each in scheduler.children(recursive=True)]
        return [each for each in found if "task" in each]

    def runs(self, dag_id):
        """Return the states of a DAG's runs by their ids."""
        return dict(self.query("SELECT run_id, state FROM dag_run WHERE dag_id = %s", dag_id))


@contextmanager
def airflow_services(stack, home, dags, **variables):
    """Yield the services of an Airflow with a folder of DAGs; none is started yet. All end and go afterwards."""
    name = f"events_{uuid.uuid4().hex[:8]}"
    dsn = own_database(stack.dsn, name, password_file=home / name)
    made = Airflow(home, dags=dags)
    made.prepare()
    path = {"PYTHONPATH": str(ROOT)}
    found = made.environment(dsn, {**os.environ, **path, **_SETTINGS, **variables}) | _SETTINGS | variables
    made.migrate(found)
    services = Services(made, found, dsn, home / "logs")
    try:
        yield services
    finally:
        services.stop()
        with psycopg.connect(stack.dsn, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            connection.execute(f"DROP ROLE {name}")
