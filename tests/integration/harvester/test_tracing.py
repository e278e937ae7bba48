"""Traces from writers through the harvester into Kafka, by every delivery and both implementations."""

import json
import socket
import subprocess
import sys

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from support.native import Native
from support.open_telemetry import Traces, header
from support.outbox import harvest_config, read_topic

from harvest_lib import OutboxRecord, append
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.native import NativeSender, implementation, library

pytestmark = pytest.mark.gate

UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
MALFORMED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333x-01"
WITHOUT = """
import json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

if sys.argv[1] == "hidden":
    sys.meta_path.insert(0, Hidden())
import psycopg
from harvest_lib import Harvest, HarvestConfig, OutboxRecord, append
from harvest_lib.cli.run import served_harvest

settings = json.loads(sys.argv[2])
with psycopg.connect(settings["data_source"]) as connection:
    append(connection, [OutboxRecord(topic=sys.argv[3], key="k", value="v")])
harvest = Harvest(HarvestConfig(**settings))
with served_harvest(None, harvest):
    print(harvest.drain(60).records)
print(*(name for name in sys.modules if name.partition(".")[0] == "opentelemetry"))
"""


@pytest.fixture
def traces(monkeypatch):
    return Traces(monkeypatch)


@pytest.fixture(params=["native", "python"])
def impl(request, monkeypatch):
    if request.param == "native" and implementation().library is None:
        pytest.skip(f"there is no native library here: {implementation().reason}")
    monkeypatch.setenv(library.VARIABLE, request.param)
    library.implementation.cache_clear()
    yield request.param
    library.implementation.cache_clear()


@pytest.fixture
def native(dsn):
    made = Native(dsn, size=1_000_000)
    yield made
    made.connection.close()


@pytest.fixture
def native_slices(monkeypatch):
    """Count the slices that go natively."""
    went, send = [], NativeSender.send

    def sending(self, rows, **named):
        went.append(len(rows))
        return send(self, rows, **named)

    monkeypatch.setattr(NativeSender, "send", sending)
    return went


def record(topic, key, **headers):
    return OutboxRecord(topic=topic, key=key, value="v", headers=headers)


def write(connection, topic, traces):
    """Write eight records: three by one span, two by another, one without, one unsampled, and one malformed."""
    with traces.tracer.start_as_current_span("checkout") as one:
        append(connection, [record(topic, f"a{number}") for number in range(3)])
    with traces.tracer.start_as_current_span("refund") as other:
        append(connection, [record(topic, f"b{number}") for number in range(2)])
    rest = [{}, {"traceparent": UNSAMPLED}, {"traceparent": MALFORMED}]
    append(connection, [record(topic, f"c{number}", **headers) for number, headers in enumerate(rest)])
    return one, other


def check(traces, servers, topic, one, other):
    """Check what is in Kafka, and that spans tell of it."""
    records = read_topic(servers, topic, isolation="read_committed")
    found = {each.key: dict(each.headers).get("traceparent") for each in records}
    of_one, of_other = header(one).encode(), header(other).encode()
    assert found == {
        **{f"a{number}": of_one for number in range(3)},
        **{f"b{number}": of_other for number in range(2)},
        "c0": None,
        "c1": UNSAMPLED.encode(),
        "c2": MALFORMED.encode(),
    }
    assert sum(each.attributes["messaging.batch.message_count"] for each in traces.ours) == 8
    assert traces.linked == {header(one), header(other)}
    assert {(each.name, each.kind, each.parent) for each in traces.ours} == {(f"send {topic}", SpanKind.CLIENT, None)}
    assert {each.status.status_code for each in traces.ours} == {StatusCode.UNSET}
    assert all(each.start_time < each.end_time for each in traces.ours)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("delivery", ["barrier", "pipelined", "transactional", "sequenced"])
def test_a_batch_leads_to_those_who_wrote_it(
    dsn, bootstrap_servers, group_id, make_topic, native, traces, impl, native_slices, delivery
):
    topic = make_topic()
    one, other = write(native.connection, topic, traces)
    config = harvest_config(dsn, bootstrap_servers, group_id, delivery=delivery, leadership="solo")
    assert Harvest(config).drain(60).records == 8
    check(traces, bootstrap_servers, topic, one, other)
    assert bool(native_slices) is (impl == "native")
    assert {(each.attributes["harvest.delivery"], each.attributes["harvest.shard"]) for each in traces.ours} == {
        (delivery, 0)
    }


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("delivery", ["barrier", "pipelined", "transactional"])
def test_what_is_marked_leads_to_those_who_wrote_it(dsn, bootstrap_servers, group_id, outbox, traces, impl, delivery):
    one, other = write(outbox.connection, outbox.topic, traces)
    config = harvest_config(dsn, bootstrap_servers, group_id, delivery=delivery, leadership="solo", source="mark")
    assert Harvest(config).drain(60).records == 8
    check(traces, bootstrap_servers, outbox.topic, one, other)


def test_a_collector_that_is_away_costs_no_record(dsn, bootstrap_servers, group_id, make_topic, native, traces):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    exporter = OTLPSpanExporter(f"http://127.0.0.1:{port}/v1/traces", timeout=1)
    processor = BatchSpanProcessor(exporter, schedule_delay_millis=10)
    traces.provider.add_span_processor(processor)
    topic = make_topic()
    one, other = write(native.connection, topic, traces)
    config = harvest_config(dsn, bootstrap_servers, group_id, delivery="transactional", leadership="solo")
    try:
        assert Harvest(config).drain(60).records == 8
        check(traces, bootstrap_servers, topic, one, other)
    finally:
        processor.shutdown()


@pytest.mark.full
@pytest.mark.parametrize("opentelemetry", ["hidden", "not used"])
def test_without_opentelemetry_nothing_is_missing(
    dsn, bootstrap_servers, group_id, make_topic, native, environment, opentelemetry
):
    topic = make_topic()
    settings = {
        "data_source": dsn,
        "base_kafka_config": {"bootstrap.servers": bootstrap_servers},
        "leader_group_id": group_id,
        "leadership": "solo",
    }
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, opentelemetry, json.dumps(settings), topic],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["1"], done.stderr
    (delivered,) = read_topic(bootstrap_servers, topic, isolation="read_committed")
    assert "traceparent" not in dict(delivered.headers)
