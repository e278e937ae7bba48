"""Output of `harvest segments`, and its connection to the outbox."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import typer
from rich.table import Table
from rich.text import Text

from harvest_lib.archive import Archived
from harvest_lib.cli.actions.outbox import open_outbox
from harvest_lib.cli.actions.tables import print_table
from harvest_lib.cli.terminal import printable
from harvest_lib.config.durations import SPELLING, parse_duration
from harvest_lib.outbox import Detached, OutboxTable, Segment, Segments


def seconds(duration: str, option: str) -> float:
    """Return a duration of the command line in seconds. Raises BadParameter for one that is spelled wrong."""
    try:
        return parse_duration(duration)
    except ValueError as error:
        raise typer.BadParameter(f"{duration!r}: {error}; {SPELLING}", param_hint=option) from error


def segment_rows(outbox: OutboxTable, connection: psycopg.Connection[Any]) -> tuple[list[dict[str, Any]], int]:
    """Return the segments and the next id. Also record which segments the sequence has passed."""
    segments = Segments(outbox)
    rows = [_segment_row(segments, connection, segment) for segment in segments.close_passed(connection)]
    return rows, segments.next_id(connection)


def _segment_row(segments: Segments, connection: psycopg.Connection[Any], segment: Segment) -> dict[str, Any]:
    waited_for = segments.waited_for(connection, segment) if segment.passed_at and not segment.closed_at else []
    state = "closed" if segment.closed_at else f"waits for {', '.join(waited_for)}" if waited_for else "open"
    return {
        "segment": segment.name,
        "lower": segment.lower,
        "upper": segment.upper,
        "bytes": segments.size_bytes(connection, segment),
        "state": "detaching" if segment.detaching else state,
    }


def show_rows(rows: list[dict[str, Any]]) -> None:
    table = Table("segment", "from", "to", "MB", "state")
    for row in rows:
        ends = ("start" if row["lower"] is None else row["lower"], "no end" if row["upper"] is None else row["upper"])
        megabytes = "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.1f}"
        table.add_row(Text(printable(str(row["segment"]))), *map(str, ends), megabytes, row["state"])
    print_table(table)


def archived_text(archived: Archived) -> str:
    size = f"{archived.bytes / 1e6:,.1f} MB in {archived.files} files"
    return f"{printable(archived.segment)}, {archived.records:,} records, {size}"


def detached_row(detached: Detached) -> dict[str, Any]:
    return {
        "segment": detached.name,
        "lower": detached.lowest_id,
        "upper": None if detached.highest_id is None else detached.highest_id + 1,
        "bytes": None,
        "state": "detached by hand",
        "records": detached.records,
        "unseen": detached.unseen,
    }


@contextmanager
def open_native(config: Path | None) -> Iterator[tuple[OutboxTable, psycopg.Connection[Any]]]:
    why = "it has no segments; docs/subscriptions.md says how its records are removed"
    with open_outbox(config, refuse_columns=why) as (_, outbox, connection):
        outbox.check_native(connection)
        yield outbox, connection
