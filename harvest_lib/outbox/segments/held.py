"""Subscriptions that keep segments from being dropped, and the disk space of the segments.

Reads the catalogue, the side tables, and a single row of the index of a few segments: never the outbox.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.outbox.segments import segment_queries as queries
from harvest_lib.outbox.segments.segment_list import Segment, Segments
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement, translated

_BY_INDEX = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off"
"""With stale statistics a whole segment would be read to sort it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Number and bytes, indexes included, of closed segments that a subscription has not passed."""

    segments: int
    bytes: int


def held_segments(
    connection: psycopg.Connection[Any], outbox: OutboxTable, *, keep_seconds: float
) -> Mapping[str, Held]:
    """Return, by subscription, the held segments among segments closed longer ago than `keep_seconds`.

    A subscription that holds none has 0. `outbox` is named with its schema.
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
    """Return the index of the first segment that is held; the number of segments if none is."""
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
