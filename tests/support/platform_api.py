"""The two web services of the platform, as programs use them."""

import time

import httpx
from support.waiting import eventually

from infra.demo.dagster_api import ENDED
from infra.demo.dagster_api import DagsterApi as Api

_TERMINATE = "mutation Terminate($run: String!) { terminateRun(runId: $run) { __typename } }"
_START = "mutation Start($sensor: SensorSelector!) { startSensor(sensorSelector: $sensor) { __typename } }"
_STOP = "mutation Stop($id: String!) { stopSensor(id: $id) { __typename } }"
_FIND = """
query Find($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) {
  ... on Sensor { id sensorState { ticks(limit: 1) { status } } } } }
"""


class DagsterApi(Api):
    """Dagster's GraphQL, as far as tests go beyond what the demo needs."""

    def run(self, job, seconds=300, **selection):
        """Run a job to its end and return its status."""
        mine = self.launch(job, **selection)
        return eventually(
            lambda: (status := self.runs(job).get(mine)) in ENDED and status, f"{job} ends", seconds=seconds
        )

    def judge(self):
        """Have every check look again, as the button of the page does, and return those that fail."""
        checks = [{"assetKey": {"path": path.split("/")}, "name": name} for path, name in self.checks()]
        self.run("__ASSET_JOB", assetSelection=[], assetCheckSelection=checks)
        return self.failing()

    def failing(self):
        """Return the verdicts of the checks that do not pass, by `asset:check`."""
        return {
            f"{path}:{name}": found.verdict
            for (path, name), found in self.checks().items()
            if found.verdict != "passed"
        }

    def terminate(self, run_id):
        self.ask(_TERMINATE, run=run_id)

    def switch(self, sensor, how):
        """Turn a sensor on (`start`) or off (`stop`); a tick that has begun goes on."""
        if how == "start":
            self.ask(_START, sensor=self._selector(sensor))
        else:
            self.ask(_STOP, id=self._found(sensor)["id"])

    def ticks(self, sensor):
        """Return whether a sensor is in the middle of a tick."""
        return any(tick["status"] == "STARTED" for tick in self._found(sensor)["sensorState"]["ticks"])

    def _found(self, sensor):
        return self.ask(_FIND, sensor=self._selector(sensor))["sensorOrError"]

    def _selector(self, sensor):
        location, repository = self.place()
        return {"sensorName": sensor, "repositoryName": repository, "repositoryLocationName": location}


class AirflowApi:
    """Airflow's API as its login may use it."""

    def __init__(self, url, password):
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=120)
        token = self._ask("POST", "/auth/token", {"username": "admin", "password": password})["access_token"]
        self._http.headers["Authorization"] = f"Bearer {token}"

    def _ask(self, method, path, content=None):
        time.sleep(0.5)  # it is asked again and again, and has other things to do
        return self._http.request(method, path, json=content).raise_for_status().json()

    def dags(self):
        return {dag["dag_id"] for dag in self._ask("GET", "/api/v2/dags")["dags"]}

    def start(self, dag_id, conf):
        self._ask("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})
        run = self._ask("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"conf": conf, "logical_date": None})
        return run["dag_run_id"]

    def connect(self, conn_id, **fields):
        """Add a connection to Dagster, as the form does."""
        self._ask("POST", "/api/v2/connections", {"connection_id": conn_id, "conn_type": "dagster", **fields})

    def runs(self, dag_id):
        return self._ask("GET", f"/api/v2/dags/{dag_id}/dagRuns")["dag_runs"]

    def state(self, dag_id, run_id):
        return self._ask("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"]

    def tasks(self, dag_id, run_id):
        found = self._ask("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in found}

    def states(self, dag_id, run_id, task):
        """Return the states of a task's instances: of several, if it is mapped."""
        found = self._ask("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {each["state"] for each in found if each["task_id"] == task}

    def link(self, dag_id, run_id, task, name, index=-1):
        """Return where a button of a task instance leads, None if nowhere; while it is not there, None too."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task}/links?map_index={index}"
        try:
            return self._ask("GET", path)["extra_links"][name]
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            return None

    def mark(self, dag_id, run_id, task, state):
        self._ask("PATCH", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task}", {"new_state": state})

    def clear(self, dag_id, run_id, task):
        chosen = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task], "only_failed": False}
        self._ask("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", chosen)
