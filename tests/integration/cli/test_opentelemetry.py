"""`opentelemetry-instrument harvest run`: traces and metrics reach a collector; one that is away costs no record."""

import gzip
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.outbox import read_topic

from harvest_lib.outbox import append
from harvest_lib.record import OutboxRecord
from harvest_lib.telemetry.counts import DURATION_BOUNDS

pytestmark = pytest.mark.full

INSTRUMENT = Path(sys.executable).with_name("opentelemetry-instrument")
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
KINDS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class Receiver(BaseHTTPRequestHandler):
    """Receives as a collector does, by OTLP over HTTP."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.received.append(KINDS[self.path].FromString(body))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.received = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def drain(allowed, reaper):
    """Run `harvest run --drain` under OpenTelemetry's command, with a collector at a port."""

    def run(port, *, patience_seconds=60):
        command = [str(INSTRUMENT), sys.executable, "-m", "harvest_lib.cli", "run", "--drain", "-f", str(reaper)]
        variables = {
            "OTEL_SERVICE_NAME": "harvester",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": str(patience_seconds),
            "OTEL_LOGS_EXPORTER": "none",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        environment = allowed("run", "-f", str(reaper), **variables)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)

    return run


def write(outbox, records):
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    append(
        outbox.connection,
        [OutboxRecord(topic=outbox.topic, key=f"k{each}", value="v", headers=headers) for each in range(records)],
    )


def test_a_collector_receives_spans_and_the_last_numbers(drain, collector, outbox):
    write(outbox, 20)
    done = drain(collector.server_port)
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["20", "records"]), done.stderr
    traces = [each for each in collector.received if isinstance(each, ExportTraceServiceRequest)]
    spans = [
        span
        for request in traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        if scope.scope.name == "harvest_lib"
        for span in scope.spans
    ]
    assert {span.name for span in spans} == {f"send {outbox.topic}"}
    assert {(link.trace_id.hex(), link.span_id.hex()) for span in spans for link in span.links} == {(TRACE, SPAN)}
    last = [each for each in collector.received if isinstance(each, ExportMetricsServiceRequest)][-1]
    (resource,) = last.resource_metrics
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "harvester"
    metrics = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    for name in ("harvest.delivered_records", "messaging.client.sent.messages"):
        assert [point.as_int for point in metrics[name].sum.data_points] == [20]
    for name in ("harvest.batch_duration", "harvest.commit_duration", "messaging.client.operation.duration"):
        (point,) = metrics[name].histogram.data_points
        assert point.count >= 1
        assert 0 < point.sum < 60
        assert tuple(point.explicit_bounds) == DURATION_BOUNDS


def test_a_collector_that_is_away_costs_no_record(drain, outbox, bootstrap_servers):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    write(outbox, 20)
    done = drain(port, patience_seconds=2)
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["20", "records"]), done.stderr
    assert len(read_topic(bootstrap_servers, outbox.topic)) == 20
