"""A real HTTP server that speaks as much of Dagster's GraphQL as we use, with runs that a test moves along."""

import base64
import json
import re
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class DagsterStub:
    """Runs by id, in the order they were started, and what was asked. `after_launch` is called with each new run."""

    def __init__(self):
        self.jobs = {"place": ["flights_job"]}
        self.broken = {}  # code location: its error
        self.partitions = {}  # of the jobs that have some
        self.runs = {}
        self.asked = []
        self.sent = 0  # bytes of the answers
        self.polled = False  # true once a run was asked for by its id
        self.next_status = "STARTED"
        self.failure = ""
        self.steps = ["SUCCESS"]
        self.materialized = []  # keys of assets, each with slashes, of each page of events
        self.terminate_answer = {}  # instead of success
        self.checks = []  # of each page of events: name, and whether it passed; None if it was not evaluated
        self.password = ""
        self.header = ()  # name and value that every request has to carry
        self.http_status = 200
        self.drop_launch_answers = 0
        self.before_launch = lambda: None
        self.url = ""

    def add(self, status, **tags):
        run = {
            "runId": f"run-{len(self.runs) + 1}",
            "status": status,
            "creationTime": float(len(self.runs)),
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        }
        self.runs[run["runId"]] = run
        return run

    def launched(self):
        return self.asked.count("HarvestLaunch")

    def answer(self, name, variables):
        return getattr(self, f"_{name.removeprefix('Harvest').lower()}")(variables)

    def _jobs(self, _):
        good = {
            place: {"repositories": [{"name": "__repository__", "jobs": [{"name": job} for job in jobs]}]}
            for place, jobs in self.jobs.items()
        }
        bad = {place: {"message": message} for place, message in self.broken.items()}
        entries = [{"name": place, "locationOrLoadError": content} for place, content in {**good, **bad}.items()]
        return {"workspaceOrError": {"__typename": "Workspace", "locationEntries": entries}}

    def _runs(self, variables):
        wanted = variables["filter"]
        self.polled = self.polled or "runIds" in wanted
        found = [
            run
            for run in self.runs.values()
            if run["runId"] in wanted.get("runIds", self.runs)
            and all(tag in run["tags"] for tag in wanted.get("tags", ()))
        ]
        return {"runsOrError": {"__typename": "Runs", "results": list(reversed(found))}}

    def _launch(self, variables):
        self.before_launch()
        run = self.add(self.next_status)
        parameters = variables["executionParams"]
        run["tags"] = parameters["executionMetadata"]["tags"]
        run["selector"], run["config"] = parameters["selector"], parameters["runConfigData"]
        return {"launchRun": {"__typename": "LaunchRunSuccess", "run": run}}

    def _work(self, variables):
        pages = self.checks or [[] for _ in self.materialized] or [[]]
        number = int(variables["after"] or 0)
        events = [{"__typename": "MessageEvent"}]
        events += [
            {"__typename": "MaterializationEvent", "materialized": {"path": key.split("/")}}
            for key in (self.materialized[number] if self.materialized else ())
        ]
        if self.failure:
            error = {"message": "outer", "causes": [{"message": self.failure}]}
            events.append({"__typename": "ExecutionStepFailureEvent", "stepKey": "flights", "error": error})
        for name, passed in pages[number]:
            check = {"checkName": name, "assetKey": {"path": ["audit", "shop"]}}
            events.append({"__typename": "AssetCheckEvaluationPlannedEvent", **check})
            if passed is not None:
                events.append({"__typename": "AssetCheckEvaluationEvent", "evaluation": {**check, "success": passed}})
        connection = {"events": events, "cursor": str(number + 1), "hasMore": number + 1 < len(pages)}
        stats = [{"stepKey": str(step), "status": status} for step, status in enumerate(self.steps)]
        return {"runOrError": {"__typename": "Run", "stepStats": stats, "eventConnection": connection}}

    def _version(self, _):
        return {"version": "1.13.0"}

    def _terminate(self, variables):
        if self.terminate_answer:
            return {"terminateRun": self.terminate_answer}
        self.runs[variables["runId"]]["status"] = "CANCELED"
        return {"terminateRun": {"__typename": "TerminateRunSuccess", "run": {"status": "CANCELING"}}}

    def _partitionsets(self, variables):
        found = [{"name": f"{variables['job']}_partition_set"}] if variables["job"] in self.partitions else []
        return {"partitionSetsOrError": {"__typename": "PartitionSets", "results": found}}

    def _partitionkeys(self, variables):
        keys, limit = self.partitions[variables["selector"]["pipelineName"]], variables["limit"]
        if variables.get("reverse"):
            keys = keys[-limit:]
        elif variables.get("after") in keys:
            keys = keys[keys.index(variables["after"]) + 1 :][:limit]
        else:
            raise StopIteration
        found = {"__typename": "Pipeline", "partitionKeysOrError": {"partitionKeys": keys}}
        return {"pipelineOrError": found}


@contextmanager
def dagster_stub(certificate=None):
    """Serve a stub on a port of 127.0.0.1; by https if there is a certificate of trustme's."""
    stub = DagsterStub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = re.search(r"(?:query|mutation) (\w+)", body["query"])[1]
            stub.asked.append(name)
            expected = "Basic " + base64.b64encode(f"user:{stub.password}".encode()).decode()
            status = stub.http_status
            if stub.password and self.headers.get("Authorization") != expected:
                status = 401
            if stub.header and self.headers.get(stub.header[0]) != stub.header[1]:
                status = 401
            content = {"errors": [{"message": "no"}]}
            try:
                content = {"data": stub.answer(name, body["variables"])} if status == 200 else content
            except StopIteration:  # as Dagster's webserver writes an exception of its own
                info = {"__class__": "SerializableErrorInfo", "message": "StopIteration\n", "stack": []}
                hidden = {"message": "An unknown error occurred.", "extensions": {"errorInfo": info}}
                status, content = 500, {"data": None, "errors": [hidden]}
            if name == "HarvestLaunch" and stub.drop_launch_answers:
                stub.drop_launch_answers -= 1
                self.connection.close()
                return
            answer = json.dumps(content).encode()
            stub.sent += len(answer)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        stub.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
        if certificate:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            certificate.configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="dagster-stub")
        thread.start()
        try:
            yield stub
        finally:
            server.shutdown()
            thread.join()
