"""The harvester itself, from the moment it leads until the last record is in Kafka and out of the table."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from harvest_lib.cli.run import served_harvest
from harvest_lib.config import HarvestConfig
from harvest_lib.events import Event, LeaderAcquired
from harvest_lib.harvester.assembly.factory import make_source
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.interpreter import tune_interpreter
from harvest_lib.native import implementation
from harvest_lib.native.library import VARIABLE
from harvest_lib.outbox import OutboxTable
from tests.benchmarks.backlog import Servers
from tests.support.counting import CountingSource

COLLECT_SECONDS = 2.0
"""The interval at which numbers are collected, where they are."""
_LOOK_SECONDS = 0.005
_LONGEST_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """One drain: records per second, and statements per 1,000 records."""

    rate: float
    statements: float


def drain(servers: Servers, records: int, *, delivery: str) -> Drain:
    """Harvest the whole backlog."""
    config = HarvestConfig(
        data_source=servers.dsn,
        base_kafka_config={"bootstrap.servers": servers.bootstrap_servers},
        producer_kafka_config={"compression.type": "lz4"},
        leadership="solo",
        delivery=delivery,
    )
    source = CountingSource(make_source(config, OutboxTable.parse("outbox")))
    began = 0.0

    def watch(event: Event) -> None:
        nonlocal began
        if isinstance(event, LeaderAcquired):
            began = time.perf_counter()

    harvest = Harvest(config, source=source)
    harvest.set_event_handler(watch)
    with harvest:
        while harvest.delivered_records < records:
            if harvest.await_stopped(_LOOK_SECONDS) or (began and time.perf_counter() - began > _LONGEST_SECONDS):
                raise RuntimeError(f"only {harvest.delivered_records} of {records} records were delivered")
        seconds = time.perf_counter() - began
    return Drain(rate=records / seconds, statements=source.worked / records * 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDrain:
    """One drain in batches: records per second, microseconds of CPU time of the whole process per record, and the
    implementation that handed them over."""

    rate: float
    cpu_micros: float
    implementation: str


def drain_batches(
    servers: Servers, records: int, *, delivery: str, listen: str | None = None, checkpoint_topic: str | None = None
) -> BatchDrain:
    """Harvest in batches, from the moment it leads; the subscription continues.

    Without a checkpoint topic it has one of its own. With `listen`, `HOST:PORT`, it is measured while it serves its
    numbers there.
    """
    group = f"bench-{uuid4().hex[:8]}"
    config = HarvestConfig(
        data_source=servers.dsn,
        base_kafka_config={"bootstrap.servers": servers.bootstrap_servers},
        producer_kafka_config={"compression.type": "lz4"},
        leadership="solo",
        delivery=delivery,
        leader_group_id=group,
        checkpoint_topic=checkpoint_topic or f"{group}.checkpoint",
    )
    began = busy = 0.0

    def watch(event: Event) -> None:
        nonlocal began, busy
        if isinstance(event, LeaderAcquired):
            began, busy = time.perf_counter(), time.process_time()

    harvest = Harvest(config)
    harvest.set_event_handler(watch)
    with served_harvest(listen, harvest), harvest:
        while harvest.delivered_records < records:
            if harvest.await_stopped(_LOOK_SECONDS) or (began and time.perf_counter() - began > _LONGEST_SECONDS):
                raise RuntimeError(f"only {harvest.delivered_records} of {records} records were delivered")
        seconds, busy = time.perf_counter() - began, time.process_time() - busy
    return BatchDrain(rate=records / seconds, cpu_micros=busy / records * 1e6, implementation=implementation().name)


def native_unavailable() -> str:
    """Return why nothing can be handed over natively here, or an empty string."""
    way = implementation()
    return f"there is no native library here: {way.reason}" if way.library is None else ""


def ways() -> list[str]:
    """Return the implementations that can hand over here, the faster one first."""
    return ["python"] if native_unavailable() else ["native", "python"]


def drain_in_process(
    servers: Servers, records: int, *, delivery: str, implementation: str, listen: str | None = None
) -> BatchDrain:
    """Do the same in a process of its own, by the implementation that is named. With `listen` it also reports to
    OpenTelemetry."""
    asked = {"servers": asdict(servers), "records": records, "delivery": delivery, "listen": listen}
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.drain"],
        input=json.dumps(asked),
        env={**os.environ, VARIABLE: implementation},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return BatchDrain(**json.loads(done.stdout))


def report_to_open_telemetry() -> None:
    """Give this process a tracer and a meter provider, of which the latter collects for nobody."""
    from opentelemetry import metrics, trace  # noqa: PLC0415 - or every other drain would be reported to it
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415
        ConsoleMetricExporter,
        PeriodicExportingMetricReader,
    )
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter  # noqa: PLC0415

    nobody = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=nobody)))
    trace.set_tracer_provider(tracers)
    reader = PeriodicExportingMetricReader(
        ConsoleMetricExporter(out=nobody), export_interval_millis=COLLECT_SECONDS * 1_000
    )
    metrics.set_meter_provider(MeterProvider([reader]))


def main() -> None:
    """Drain as standard input asks for, and write what came of it."""
    tune_interpreter()  # as `harvest run` does
    asked = json.loads(sys.stdin.read())
    servers = Servers(**asked.pop("servers"))
    if asked["listen"]:
        report_to_open_telemetry()
    done = drain_batches(servers, asked.pop("records"), **asked)
    sys.stdout.write(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
