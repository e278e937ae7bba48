"""One run of `make demo-pipeline`.

    flights ─► commit log ─┬─► /^public\\.flights$/ ─► cloud_events ─► Kafka
     ▲ changes             ├─► /^public\\.flights$/ ─► omit, rename ─► a second table
                           └─► /^public\\.flights$/ ─► Parquet
    and a second source table, whose messages the filters of all writers drop

The process is killed twice during the copy, then eight times while changes are made. At the end every destination is
compared with the source, row by row.
"""

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.encoded_messages import message_of
from harvest_lib.pipeline.folder import commit_folder
from harvest_lib.pipeline.message import Mode, Op, PipelineMessage
from harvest_lib.postgres.database import connect
from infra.demo.place import Place
from infra.demo.progress import Progress
from infra.demo.runner import DemoRun
from infra.demo_pipeline.destinations import Arrived, Row, differences, in_kafka, in_parquet, in_postgres
from infra.demo_pipeline.process import PipelineProcess, StateAfterKill
from infra.demo_pipeline.source import ChangeFeed, load, rows_of

ONLY_FLIGHTS = r"^public\.flights$"

_PER_SECOND = 500.0
_DROP_SLOT = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
_SENTINEL = "UPDATE flights SET dest = 'END' WHERE id = (SELECT min(id) FROM flights) RETURNING id"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDemoPlan:
    """Size of a run. `kills` is the number of all kills; the first `copy_kills` happen while the table is copied."""

    rows: int = 30_000
    changes: int = 5_000
    kills: int = 10
    copy_kills: int = 2
    seed: int = 2013


_WHOLE = PipelineDemoPlan()


def run(folder: Path, place: Place, progress: Progress, plan: PipelineDemoPlan = _WHOLE) -> dict[str, Any]:
    """Run the demo at `place`, and return its report. Raises HarvestError if a part of it fails."""
    began, slot = time.monotonic(), f"harvest_demo_{secrets.token_hex(4)}"
    with DemoRun(folder, place, progress) as demo:
        rows = load(place.dsn, plan.rows)
        progress.say(f"{rows:,} flights are in a table of Postgres")
        demo.callback(_drop, place.dsn, slot)
        file = demo.private_file("pipeline.yaml", declared(folder, place, slot))
        pipeline = PipelineProcess(file, folder / "pipeline.log", seed=plan.seed)
        demo.start(pipeline)
        _kill(pipeline, progress, plan.copy_kills, "while the table is copied", within_seconds=0.5)
        demo.wait(lambda: _is_copied(folder), "the copy does not end")
        progress.say(f"the table is copied; {plan.changes:,} changes begin")
        changes = ChangeFeed(place.dsn, rows=rows, total=plan.changes, per_second=_PER_SECOND, seed=plan.seed)
        demo.start(changes)
        times = plan.kills - plan.copy_kills
        for number in range(1, times + 1):
            changes.allow(number / (times + 1))
            _kill(pipeline, progress, 1, "while changes come", within_seconds=1.0)
        changes.allow(1.0)
        demo.wait(lambda: changes.done, "the changes do not get done", next_step="read Postgres' log")
        _await_end(demo, pipeline)
        pipeline.stop()
        progress.say("all is through; comparing row by row", "bold")
        return {
            **_report(folder, place, pipeline.kills),
            "changes": changes.made,
            "wall_seconds": round(time.monotonic() - began, 1),
        }


def declared(folder: Path, place: Place, slot: str) -> str:
    """Return the pipeline's declaration as YAML. It contains the password."""
    only = {"namespace": ONLY_FLIGHTS, "batch_messages": 500}
    return yaml.safe_dump(
        {
            "name": "flights",
            "folder": str(folder / "pipeline"),
            "commit_log": {"segment_size": "4MB", "compact_every": "2s"},
            "flush_offsets": "200ms",
            "max_behind_messages": 250,
            "reader": {
                "adaptor": "postgres",
                "data_source": place.dsn,
                "slot": slot,
                "tables": ["public.flights", "public.audit_notes"],
                "batch_rows": 250,
            },
            "writers": {
                "events": {
                    "adaptor": "kafka",
                    "kafka": place.kafka,
                    "topic": place.topic,
                    "key": {"public.flights": ["subject"]},
                    "transforms": [{"cloud_events": {"source": "/flights", "subject": "id"}}],
                    **only,
                },
                "copy": {
                    "adaptor": "postgres",
                    "data_source": place.dsn,
                    "table": "copied.flights",
                    "transforms": [{"omit": ["year"]}, {"rename": {"tailnum": "aircraft"}}],
                    **only,
                },
                "lake": {"adaptor": "file", "format": "parquet", "path": str(folder / "lake"), **only},
            },
        },
        sort_keys=False,
    )


def _drop(dsn: str, slot: str) -> None:
    """Drop the slot, because it would retain WAL for ever and prevent the removal of its database."""
    with connect(dsn) as connection:
        connection.execute(_DROP_SLOT, (slot,))


def _kill(pipeline: PipelineProcess, progress: Progress, times: int, when: str, *, within_seconds: float) -> None:
    for _ in range(times):
        killed = pipeline.kill(within_seconds=within_seconds)
        behind = ", ".join(f"{name} {killed.end - place:,}" for name, place in killed.resumes_at.items())
        progress.say(f"kill {len(pipeline.kills)}, {when}: offset {killed.end:,}; to resume: {behind}", "bold red")


def _is_copied(folder: Path) -> bool:
    """Return True if the newest message of the flights marks their copy as complete."""
    newest = _newest(folder)
    return newest is not None and newest.mode is not Mode.COPY


def _newest(folder: Path) -> PipelineMessage | None:
    """Return the newest message of the flights in the commit log, None if there is none."""
    entry = CommitLog.look(commit_folder(folder / "pipeline")).newest().get(b"public.flights")
    return None if entry is None else message_of(entry)


def _await_end(demo: DemoRun, pipeline: PipelineProcess) -> None:
    """Make a last change, and wait until the log has it and every writer is past it."""
    last_id = demo.ask(_SENTINEL)

    def come() -> int | None:
        message = _newest(demo.folder)
        if message is None or message.op is Op.NOOP:
            return None
        is_last = message.data.get("id") == last_id and message.data.get("dest") == "END"
        return message.offset + 1 if is_last else None

    end = demo.wait(come, "the last change does not come")
    pipeline.await_status(
        lambda status: all(each.position >= end for each in status.writers), "writers do not get to the end"
    )


def _report(folder: Path, place: Place, kills: Sequence[StateAfterKill]) -> dict[str, Any]:
    source = rows_of(place.dsn, "flights")
    arrived = {
        "events": in_kafka(place),
        "copy": in_postgres(place.dsn),
        "lake": in_parquet(folder / "lake" / "public.flights"),
    }
    destinations: dict[str, dict[str, Any]] = {}
    for name, found in arrived.items():
        differing = differences(source, found, _as_copied if name == "copy" else dict)
        twice, unexplained = _repeats(found, name, kills)
        destinations[name] = {
            "rows": len(found.rows),
            "differences": len(differing),
            "first_differences": sorted(differing)[:5],
            "messages": sum(found.times.values()) or None,
            "duplicates": twice if found.times else None,
            "unexplained_duplicates": unexplained,
        }
    leaked = sum(1 for each in (folder / "lake").iterdir() if each.name != "public.flights")
    report = {
        "rows": len(source),
        "differences": sum(each["differences"] for each in destinations.values()) + leaked,
        "duplicates": sum(each["duplicates"] or 0 for each in destinations.values()),
        "unexplained_duplicates": sum(each["unexplained_duplicates"] for each in destinations.values()),
        "kills": len(kills),
        "destinations": destinations,
    }
    is_proved = bool(source) and bool(kills) and all(each["rows"] for each in destinations.values())
    return {"ok": is_proved and not report["differences"] and not report["unexplained_duplicates"], **report}


def _as_copied(row: Row) -> Mapping[str, Any]:
    return {"aircraft" if name == "tailnum" else name: value for name, value in row.items() if name != "year"}


def _repeats(arrived: Arrived, writer: str, kills: Sequence[StateAfterKill]) -> tuple[int, int]:
    """Return two numbers: the repeated messages, and those of them that no kill explains. A kill explains one
    repetition of each message that the writer had not yet saved as written."""
    excused: Counter[int] = Counter()
    for kill in kills:
        excused.update(range(kill.resumes_at[writer], kill.end))
    again = {offset: times - 1 for offset, times in arrived.times.items() if times > 1}
    return sum(again.values()), sum(max(0, times - excused[offset]) for offset, times in again.items())
