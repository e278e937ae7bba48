"""The whole platform for a test, and its two web services as programs use them."""

import json
import time

import httpx
from support.waiting import eventually

_CHECKS = """
{ assetNodes { assetChecksOrError { ... on AssetChecks { checks {
  name executionForLatestMaterialization { runId status evaluation { success severity description } }
} } } } }
"""

_JOBS = """
{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError {
  ... on RepositoryLocation { repositories { name jobs { name } } } } } } } }
"""

_LAUNCH = """
mutation Launch($parameters: ExecutionParams!) { launchRun(executionParams: $parameters) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on Error { message }
} }
"""

_RUNS = """
query Runs($job: String!) { runsOrError(filter: {pipelineName: $job}, limit: 20) { ... on Runs {
  results { runId status } } } }
"""

_TERMINATE = "mutation Terminate($run: String!) { terminateRun(runId: $run) { __typename } }"

_SENSOR = """
mutation Stop($sensor: SensorSelector!) { resetSensor(sensorSelector: $sensor) { __typename } }
"""

ENDED = {"SUCCESS", "FAILURE", "CANCELED"}


class DagsterApi:
    """Dagster's GraphQL."""

    def __init__(self, url):
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=120)

    def ask(self, query, **variables):
        answer = self._http.post("/graphql", json={"query": query, "variables": variables}).raise_for_status().json()
        assert "errors" not in answer, json.dumps(answer["errors"])[:2000]
        return answer["data"]

    def job(self, name):
        """Return the selector of a job, wherever it is."""
        for entry in self.ask(_JOBS)["workspaceOrError"]["locationEntries"]:
            for repository in entry["locationOrLoadError"]["repositories"]:
                if any(job["name"] == name for job in repository["jobs"]):
                    return {
                        "jobName": name,
                        "repositoryName": repository["name"],
                        "repositoryLocationName": entry["name"],
                    }
        raise AssertionError(f"no job {name}")

    def runs(self, job):
        """Return the runs of a job, the newest first: id and status."""
        return [(run["runId"], run["status"]) for run in self.ask(_RUNS, job=job)["runsOrError"]["results"]]

    def launch(self, job, seconds=300):
        """Run a job to its end and return its status."""
        parameters = {"selector": self.job(job), "runConfigData": {}, "executionMetadata": {"tags": []}}
        answer = self.ask(_LAUNCH, parameters=parameters)["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        mine = answer["run"]["runId"]
        return eventually(lambda: (s := dict(self.runs(job)).get(mine)) in ENDED and s, seconds, f"{job} ends")

    def terminate(self, run_id):
        self.ask(_TERMINATE, run=run_id)

    def checks(self):
        """Return each check's last verdict: `passed`, `WARN` or `ERROR`, or None if it has none yet."""
        found = {}
        for node in self.ask(_CHECKS)["assetNodes"]:
            for check in node["assetChecksOrError"].get("checks", ()):
                found.setdefault(check["name"], _verdict(check["executionForLatestMaterialization"]))
        return found

    def failing(self):
        return {name: verdict for name, verdict in self.checks().items() if verdict not in {"passed", None}}


def _verdict(execution):
    if execution is None or execution["evaluation"] is None:
        return None if execution is None else execution["status"]
    return "passed" if execution["evaluation"]["success"] else execution["evaluation"]["severity"]


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

    def state(self, dag_id, run_id):
        return self._ask("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"]

    def tasks(self, dag_id, run_id):
        found = self._ask("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in found}
