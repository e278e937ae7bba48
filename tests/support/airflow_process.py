"""Airflow in a process of its own, since importing it seizes logging and a home folder.

    python airflow_process.py import          print the errors of importing the DAGs, and their ids
    python airflow_process.py DAG_ID CONF     run a DAG as `dag.test()` does, with retries at once, and print its end

The answer is the last line of the output, in JSON; the lines before it are Airflow's log.
"""

import json
import os
import subprocess
import sys
from datetime import timedelta


def run_airflow(environment, *arguments):
    """Run this file with the variables and return its answer and its log."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
        cwd="/",
    )
    *log, answer = done.stdout.splitlines() or [""]
    assert done.returncode == 0, "\n".join([*log[-40:], answer])
    return json.loads(answer), "\n".join(log)


def main(arguments):
    from airflow.dag_processing.dagbag import DagBag  # noqa: PLC0415 - in a process of its own only

    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    if arguments == ["import"]:
        answer({"errors": bag.import_errors, "dags": sorted(bag.dags)})
        return
    assert not bag.import_errors, bag.import_errors
    dag_id, conf = arguments
    dag = bag.get_dag(dag_id)
    for task in dag.tasks:
        task.retry_delay = timedelta(0)
    run = dag.test(run_conf=json.loads(conf))
    instances = run.get_task_instances()
    answer(
        {
            "state": str(run.state),
            "run_id": run.run_id,
            "tasks": {instance.task_id: str(instance.state) for instance in instances},
            "returned": {instance.task_id: instance.xcom_pull(task_ids=instance.task_id) for instance in instances},
        }
    )


def answer(content):
    sys.stdout.write("\n" + json.dumps(content, default=str) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
