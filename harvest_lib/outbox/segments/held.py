"""Segments that cannot be dropped because a subscription still needs them, and the disk space of these segments.

The queries read the catalogue, the side tables, and single index entries of a few segments. They never scan the outbox.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.outbox.segments import segment_queries as queries
from harvest_lib.outbox.segments.segment_list import Segment, Segments
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

_BY_INDEX = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off"
"""Settings that enforce the use of the index. With stale statistics, Postgres could read and sort a whole segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Closed segments that a subscription has not passed: their number, and their size in bytes, indexes included."""

    segments: int
    bytes: int


def held_segments(
    connection: psycopg.Connection[Any], outbox: OutboxTable, *, keep_seconds: float
) -> Mapping[str, Held]:
    """Return the held segments of each subscription. Only segments that were closed more than `keep_seconds` ago count.

    A subscription that holds no segment has 0 segments and 0 bytes. `outbox` must include its schema.
    """
    with translated(), connection.transaction():
        connection.execute(_BY_INDEX)
        return _held(connection, outbox, keep_seconds)


def _held(connection: psycopg.Connection[Any], outbox: OutboxTable, keep_seconds: float) -> Mapping[str, Held]:
    found = connection.execute(_filled(queries.SUBSCRIPTIONS, outbox), {}).fetchall()
    old = {name for (name,) in connection.execute(_filled(queries.PAST_KEEPING, outbox), {"keep": keep_seconds})}
    segments = Segments(outbox)
    closed = [each for each in segments.read(connection) if each.name in old] if old else []
    firsts: dict[str, int] = {}
    for subscription, _, low_watermark, hold in found:
        first = _first_held(connection, segments, closed, low_watermark, hold)
        firsts[subscription] = min(first, firsts.get(subscription, first))
    sizes = {each.name: segments.size_bytes(connection, each) for each in closed[min(firsts.values(), default=0) :]}
    return {
        subscription: Held(segments=len(closed) - first, bytes=sum(sizes[each.name] for each in closed[first:]))
        for subscription, first in firsts.items()
    }


def _first_held(
    connection: psycopg.Connection[Any],
    segments: Segments,
    closed: list[Segment],
    low_watermark: str,
    hold: int | None,
) -> int:
    """Return the index in `closed` of the first segment that is held; `len(closed)` if no segment is held."""
    for place, segment in enumerate(closed):
        holds = hold is not None and segment.upper is not None and hold < segment.upper
        if holds or segments.has_unseen(connection, segment, low_watermark, by_outbox=True):
            return place
    return len(closed)


def _filled(query: str, outbox: OutboxTable) -> sql.Composed:
    return sql.SQL(query).format(
        outbox=in_statement(outbox.identifier),
        segments=in_statement(outbox.segments.identifier),
        subscriptions=in_statement(outbox.subscriptions.identifier),
        parked_ids=in_statement(outbox.parked_ids.identifier),
    )
