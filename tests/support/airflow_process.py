"""Airflow in a process of its own, since importing it seizes logging and a home folder.

It imports the DAGs and runs some of them, one after the other, as `dag.test()` does. Retries are made at once.
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta

from psycopg.conninfo import conninfo_to_dict

_MARK, _ANSWER = "-- here the next run begins --", "-- here the answer begins --"


def run_airflow(environment, runs, *, python=sys.executable, connections=None):
    """Run DAGs: dicts of `dag_id`, `conf` and `variables`. Return ids and errors of the import, and each run's end.

    `connections` are added to Airflow's database before: dicts of a connection's parts by its name.

    `python` is the interpreter of an environment with Airflow. An end is a dict of `state`, `run_id`, `tasks`,
    `returned` and `log`.
    """
    done = subprocess.run(
        # -P: beside this file others have names of the standard library.
        [python, "-P", __file__, json.dumps(runs), json.dumps(connections or {})],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stdout[-4000:]
    text, _, answer = done.stdout.rpartition(_ANSWER)
    imported, *ends = json.loads(answer.splitlines()[0])  # a listener may log after it
    _, *logs = text.split(_MARK)
    return imported, [{**end, "log": log} for end, log in zip(ends, logs, strict=True)]


def outbox_connection(dsn, **extra):
    """Return the parts of a connection of type `outbox`."""
    parts = conninfo_to_dict(dsn)
    place = {"host": parts["host"], "port": int(parts["port"]), "schema": parts["dbname"]}
    own = {**place, "login": parts["user"], "password": parts.get("password")}
    return {"conn_type": "outbox", **own, "extra": {"sslmode": "disable", **extra}}


@contextmanager
def airflow_started(environment, runs, log):
    """Start the same and return the process, whose output goes into a file; it is killed in the end."""
    with log.open("wb") as file:
        command = [sys.executable, "-P", __file__, json.dumps(runs)]
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT, cwd="/")
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


def main(runs, connections=None):
    try:
        from airflow.dag_processing.dagbag import DagBag  # noqa: PLC0415 - in a process of its own only
    except ImportError:  # before Airflow 3.2
        from airflow.models.dagbag import DagBag  # noqa: PLC0415

    if connections:
        from airflow.models import Connection  # noqa: PLC0415
        from airflow.utils.session import create_session  # noqa: PLC0415

        with create_session() as session:
            for name, parts in connections.items():
                session.add(Connection(conn_id=name, **{**parts, "extra": json.dumps(parts["extra"])}))
    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    answers = [{"errors": bag.import_errors, "dags": sorted(bag.dags)}]
    for each in runs:
        dag = bag.get_dag(each["dag_id"])
        for task in dag.tasks:
            task.retry_delay = timedelta(0)
        os.environ.update(each["variables"])
        say(_MARK)
        run = dag.test(run_conf=each["conf"])
        instances = run.get_task_instances()
        answers.append(
            {
                "state": str(run.state),
                "run_id": run.run_id,
                "tasks": {instance.task_id: str(instance.state) for instance in instances},
                "returned": {instance.task_id: instance.xcom_pull(task_ids=instance.task_id) for instance in instances},
            }
        )
        for name in each["variables"]:
            del os.environ[name]
    say(_ANSWER + json.dumps(answers, default=str))


def say(line):
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
