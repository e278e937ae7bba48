"""A pipeline: from a native outbox into a topic and a file of JSON lines, each by a writer of its own.

From the start of the pipeline, whose logs are new, until both writers have acknowledged all.
"""

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from uuid import uuid4

import yaml

from harvest_lib.local_stack.state import default_state, make_folder, write_private
from harvest_lib.pipeline.declaration import load
from harvest_lib.pipeline.operations import pipeline_status
from harvest_lib.pipeline.pipeline import Pipeline
from tests.benchmarks.backlog import PARTITIONS, Servers
from tests.benchmarks.report import Result, at_least

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_PER_SECOND = 30_000.0
_SWITCH_SECONDS = 0.005
"""Python's own, which `harvest pipeline run` leaves as it is: all its threads do the same kind of work."""
_LOOK_SECONDS = 0.1
_LONGEST_SECONDS = 300


def pipeline(servers: Servers, size: "Size") -> Iterator[Result]:
    """Compare with the rate that was agreed on: no floor was measured."""
    records = 2 * size.records
    servers.make_native()
    servers.insert(records)
    servers.settle()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        rate = median(_through(servers, records) for _ in range(size.rounds))
    finally:
        sys.setswitchinterval(interval)
    yield at_least("pipeline", rate, "/s", floor=_PER_SECOND, ratio=rate / _PER_SECOND, target=1.0)


def _through(servers: Servers, records: int) -> float:
    """Return messages per second."""
    name = f"p{uuid4().hex[:8]}"
    folder = make_folder(default_state() / "bench" / name)
    try:
        file = folder / "pipeline.yaml"
        write_private(file, _declared(servers, name, folder))
        declaration = load(file)
        running = Pipeline(declaration)
        thread = threading.Thread(target=running.run)
        began = time.perf_counter()
        thread.start()
        try:
            while min(each.position for each in pipeline_status(declaration).writers) < records:
                if not thread.is_alive() or time.perf_counter() - began > _LONGEST_SECONDS:
                    raise RuntimeError("the records did not get through")
                time.sleep(_LOOK_SECONDS)
            return records / (time.perf_counter() - began)
        finally:
            running.stop()
            thread.join()
    finally:
        shutil.rmtree(folder)


def _declared(servers: Servers, name: str, folder: Path) -> str:
    return yaml.safe_dump(
        {
            "folder": str(folder / "logs"),
            "flush_offsets": "100ms",  # which is how the measurement looks at it
            "reader": {"adaptor": "outbox", "data_source": servers.dsn, "subscription": name},
            "writers": {
                "topic": {
                    "adaptor": "kafka",
                    "kafka": {"bootstrap.servers": servers.bootstrap_servers, "compression.type": "lz4"},
                    "topic": name,
                    "partitions": PARTITIONS,
                    "key": {servers.topic: ["key"]},
                    "batch_messages": 5_000,
                },
                "file": {"adaptor": "file", "path": str(folder / "out.jsonl"), "batch_messages": 5_000},
            },
        }
    )
