"""What `harvest segments` shows, and how it opens the outbox."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from harvest_lib.cli.options import ConfigFile, configuration, refuse_columns
from harvest_lib.database import connect
from harvest_lib.outbox import Detached, OutboxTable, Segment, Segments


def segment_row(segments: Segments, connection: psycopg.Connection[Any], segment: Segment) -> dict[str, Any]:
    waited_for = segments.waited_for(connection, segment) if segment.passed_at and not segment.closed_at else []
    state = "closed" if segment.closed_at else f"waits for {', '.join(waited_for)}" if waited_for else "open"
    return {
        "segment": segment.name,
        "lower": segment.lower,
        "upper": segment.upper,
        "bytes": segments.size_bytes(connection, segment),
        "state": "detaching" if segment.detaching else state,
    }


def megabytes(row: dict[str, Any]) -> str:
    return "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.1f}"


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
def open_outbox(config: ConfigFile) -> Iterator[tuple[OutboxTable, psycopg.Connection[Any]]]:
    harvest = configuration(config).harvest
    refuse_columns(harvest, "it has no segments; docs/subscriptions.md says how its records are removed")
    outbox = OutboxTable.parse(harvest.outbox_table)
    with connect(harvest.data_source.conninfo()) as connection:
        outbox.check_native(connection)
        yield outbox, connection
