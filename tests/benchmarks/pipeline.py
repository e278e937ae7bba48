"""A pipeline: from a native outbox into a topic and a file of JSON lines, each by a writer of its own.

From a writer's first bulk, with which it connects, until it has taken all; the slower of the two counts. It is compared
with the slowest of its parts alone, each measured in the same round with the same records: reading, the commit log, and
the bulks of each writer but the first. A round before all others is not counted. The cost of a start, with logs that
are new, is a line of its own.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from uuid import uuid4

import yaml

from harvest_lib.local_stack.state import default_state, make_folder, write_private
from harvest_lib.pipeline.adaptors import Writer
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.declaration import Declaration, load
from harvest_lib.pipeline.encoded_messages import EncodedMessages, encoded
from harvest_lib.pipeline.logged_messages import MessageCache
from harvest_lib.pipeline.message import PipelineMessage
from harvest_lib.pipeline.pipeline import Pipeline
from harvest_lib.pipeline.routing import Routing
from tests.benchmarks.backlog import PARTITIONS, Servers
from tests.benchmarks.report import Result, at_least

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_TIMES = 4
"""As many records as other scenarios have."""
_BULK_MESSAGES = 5_000
_LONGEST_SECONDS = 300
_WRITERS = ("topic", "file")


def pipeline(servers: Servers, size: "Size") -> Iterator[Result]:
    """Compare with the slowest of its parts."""
    records = _TIMES * size.records
    servers.make_native()
    servers.insert(records)
    servers.settle()
    _round(servers, records, [])  # or its first part would be measured on code that broker and kernel see first
    starts: list[float] = []
    rounds = [_round(servers, records, starts) for _ in range(size.rounds)]
    ratios = [found["pipeline"] / min(rate for part, rate in found.items() if part != "pipeline") for found in rounds]
    rates = {part: median(found[part] for found in rounds) for part in rounds[0]}
    floor = min(rate for part, rate in rates.items() if part != "pipeline")
    yield at_least(
        "pipeline",
        rates["pipeline"],
        "/s",
        floor=floor,
        ratio=median(ratios),
        ratios=(min(ratios), max(ratios)),
        target=0.5,
    )
    for part, rate in rates.items():
        if part != "pipeline":
            yield Result(name=f"pipeline-part-{part}", value=rate, unit="/s")
    yield Result(name="pipeline-start", value=median(starts), unit="s")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A pipeline that is declared in a folder of its own."""

    declaration: Declaration
    folder: Path
    records: int

    def writer(self, name: str) -> Writer:
        """Return one of its writers."""
        return next(each.open() for each in self.declaration.writers if each.name == name)


def _round(servers: Servers, records: int, starts: list[float]) -> dict[str, float]:
    """Return messages per second, of the pipeline and of each part; append the seconds of the pipeline's start."""
    with _planned(servers, records) as plan:
        rate, seconds = _through(plan)
        starts.append(seconds)
        found = {"pipeline": rate}
    with _planned(servers, records) as plan:
        found["reading"] = _reading(plan)
    with _planned(servers, records) as plan:
        batches = _batches(plan)
        found["log"] = _appending(plan, batches)
        for name in _WRITERS:
            found[name] = _writing(plan.writer(name), batches)
    return found


@contextmanager
def _planned(servers: Servers, records: int) -> Iterator[_Plan]:
    name = f"p{uuid4().hex[:8]}"
    folder = make_folder(default_state() / "bench" / name)
    try:
        file = folder / "pipeline.yaml"
        write_private(file, _declared(servers, name, folder))
        yield _Plan(declaration=load(file), folder=folder, records=records)
    finally:
        shutil.rmtree(folder)


def _rate(records: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return records / (time.perf_counter() - began)


class _Counting(Writer):
    """A writer that tells once it has taken so many messages, and how fast it took all but the first bulk."""

    def __init__(self, writer: Writer, messages: int) -> None:
        self.has_all = threading.Event()
        self.rate = 0.0
        self.started_at = 0.0
        self._writer = writer
        self._left = messages
        self._counted = 0

    def write(self, messages: Sequence[PipelineMessage]) -> None:
        self._writer.write(messages)
        now = time.perf_counter()
        self._left -= len(messages)
        if not self.started_at:
            self.started_at, self._counted = now, self._left
        elif self._left <= 0:
            self.rate = self._counted / (now - self.started_at)
            self.has_all.set()

    def close(self) -> None:
        self._writer.close()


def _through(plan: _Plan) -> tuple[float, float]:
    """Return the rate of the slower writer, and after how many seconds it had its first bulk."""
    counting = {each.name: _Counting(each.open(), plan.records) for each in plan.declaration.writers}

    def opens(name: str) -> Callable[[], Writer]:
        return lambda: counting[name]

    writers = [replace(each, open=opens(each.name)) for each in plan.declaration.writers]
    running = Pipeline(replace(plan.declaration, writers=writers))
    thread = threading.Thread(target=running.run)
    began = time.perf_counter()
    thread.start()
    try:
        if not all(each.has_all.wait(_LONGEST_SECONDS) for each in counting.values()):
            raise RuntimeError("the records did not get through")
        slower = min(counting.values(), key=lambda each: each.rate)
        return slower.rate, slower.started_at - began
    finally:
        running.stop()
        thread.join()


def _read(plan: _Plan, take: Callable[[Sequence[PipelineMessage]], object]) -> None:
    with closing(plan.declaration.reader.open()) as reader:
        for batch in reader.read({}):
            if batch:
                take(batch)
                if batch[-1].data["delivered"] >= plan.records:
                    return


def _reading(plan: _Plan) -> float:
    return _rate(plan.records, lambda: _read(plan, len))


def _batches(plan: _Plan) -> Sequence[EncodedMessages]:
    found: list[EncodedMessages] = []
    _read(plan, lambda batch: found.append(encoded(batch)))
    return found


def _appending(plan: _Plan, batches: Sequence[EncodedMessages]) -> float:
    """Append what a pipeline appends, and have it on the disk."""
    with CommitLog(plan.folder / "log") as log:

        def append() -> None:
            for batch in batches:
                log.append(batch)
            log.sync()

        return _rate(plan.records, append)


def _writing(writer: Writer, batches: Sequence[EncodedMessages]) -> float:
    """Write the bulks that a pipeline hands to a writer, but the first, with which it connects."""
    bulks, routing, cache = [], Routing(), MessageCache(most_bytes=1 << 40)
    for batch in batches:
        cache.add(cache.end, batch)
    at = 0
    while run := cache.run(at, cache.end, _BULK_MESSAGES):
        bulks.append(routing.as_it_is(run))
        at = run.next

    def write() -> None:
        for bulk in bulks[1:]:
            if bulk:
                writer.write(bulk)

    with closing(writer):
        writer.write(bulks[0] or ())
        return _rate(sum(len(bulk or ()) for bulk in bulks[1:]), write)


def _declared(servers: Servers, name: str, folder: Path) -> str:
    return yaml.safe_dump(
        {
            "folder": str(folder / "logs"),
            "reader": {"adaptor": "outbox", "data_source": servers.dsn, "subscription": name},
            "writers": {
                "topic": {
                    "adaptor": "kafka",
                    "kafka": {"bootstrap.servers": servers.bootstrap_servers, "compression.type": "lz4"},
                    "topic": name,
                    "partitions": PARTITIONS,
                    "key": {servers.topic: ["key"]},
                    "batch_messages": _BULK_MESSAGES,
                },
                "file": {"adaptor": "file", "path": str(folder / "out.jsonl"), "batch_messages": _BULK_MESSAGES},
            },
        }
    )
