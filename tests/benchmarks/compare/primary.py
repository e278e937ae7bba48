"""Cost of a relay for the Postgres server, beside the cost of the writer, from the server's own counters."""

import time
from dataclasses import dataclass

import psycopg

from tests.benchmarks.compare.live import RATE
from tests.benchmarks.compare.peer import Peer, Place
from tests.benchmarks.compare.traffic import traffic

_SETTLE_SECONDS = 3.0
_PER = 1_000
_COUNTERS = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8, (xact_commit + xact_rollback)::float8,
       (tup_inserted + tup_updated + tup_deleted)::float8, (blks_hit + blks_read)::float8
FROM pg_stat_database WHERE datname = current_database()
"""
_CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()
"""
_HELD = """
SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)), 0)::float8 FROM pg_replication_slots
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """Bytes of WAL, transactions, row versions and pages for 1,000 records, without the cost of the writer, 0 where the
    cost of the writer varies by more; sessions;
    and bytes of WAL that the server keeps for a relay that stands still, for 1,000 records written meanwhile."""

    wal_bytes: float
    transactions: float
    row_versions: float
    pages: float
    connections: int
    held_bytes: float


def primary(peer: Peer, place: Place, seconds: float) -> Primary:
    """Let a writer insert at a steady rate beside one process of the relay, then alone."""
    peer.make(place)
    with peer.run(place, members=1) as relay, psycopg.connect(place.servers.dsn, autocommit=True) as connection:
        with traffic(place, peer.insert_one, RATE) as flow:
            both = _counted(connection, flow.written, seconds)
            sessions = _number(connection, _CONNECTIONS) - 1  # the writer's
        relay.pause()
        held = _number(connection, _HELD)
        with traffic(place, peer.insert_one, RATE) as flow:
            alone = _counted(connection, flow.written, seconds)
        held = (_number(connection, _HELD) - held) * _PER / len(flow.written)
    beside = (max(of_both - of_one, 0.0) for of_both, of_one in zip(both, alone, strict=True))
    wal, transactions, row_versions, pages = beside
    return Primary(
        wal_bytes=wal,
        transactions=transactions,
        row_versions=row_versions,
        pages=pages,
        connections=int(sessions),
        held_bytes=max(held, 0.0),
    )


def _counted(connection: "psycopg.Connection[tuple[float, ...]]", written: list[float], seconds: float) -> list[float]:
    """Return by how much each counter rises, for 1,000 records, once the first seconds have passed."""
    time.sleep(_SETTLE_SECONDS)
    connection.execute("CHECKPOINT")  # pages that change again are logged whole, in either measurement
    before, first = _counters(connection), len(written)
    time.sleep(seconds)
    after, last = _counters(connection), len(written)
    return [(late - early) * _PER / (last - first) for early, late in zip(before, after, strict=True)]


def _counters(connection: "psycopg.Connection[tuple[float, ...]]") -> tuple[float, ...]:
    connection.execute("SELECT pg_stat_clear_snapshot()")
    row = connection.execute(_COUNTERS).fetchone()
    assert row is not None
    return row


def _number(connection: "psycopg.Connection[tuple[float, ...]]", query: str) -> float:
    row = connection.execute(query).fetchone()
    return row[0] if row else 0.0
