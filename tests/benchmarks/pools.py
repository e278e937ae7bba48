"""How long an outbox has no leader: after a SIGKILL, and after a SIGTERM."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from infra.demo.pool import Lead, Pool
from tests.benchmarks.backlog import Servers

SESSION_SECONDS = 10.0
"""The default."""

_SETTLED_SECONDS = 3.0
"""A member that joins moves the leadership; after so long without a change all have joined."""
_LONGEST_SECONDS = 60.0
_LOOK_SECONDS = 0.01


def take_over(servers: Servers) -> float:
    """Return the seconds from the SIGKILL of a leader to the term of the next."""
    with _pool(servers) as (pool, lead):
        struck = pool.kill(lead)
        return _successor(pool, lead).at - struck


def hand_over(servers: Servers) -> float:
    """Return the seconds from the SIGTERM of a leader to the term of the next."""
    with _pool(servers) as (pool, lead):
        asked = pool.release(lead)
        return _successor(pool, lead).at - asked


@contextmanager
def _pool(servers: Servers) -> Iterator[tuple[Pool, Lead]]:
    with TemporaryDirectory() as folder:
        config = Path(folder) / "harvest.yaml"
        config.write_text(servers.yaml())
        pool = Pool(config, Path(folder), size=2)
        pool.start()
        try:
            yield pool, _settled(pool)
        finally:
            pool.stop()


def _settled(pool: Pool) -> Lead:
    changed, deadline = time.monotonic(), time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < deadline:
        if pool.look():
            changed = time.monotonic()
        if pool.all_started and pool.leader is not None and time.monotonic() - changed > _SETTLED_SECONDS:
            return pool.leader
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError("nobody came to lead for good")


def _successor(pool: Pool, before: Lead) -> Lead:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < deadline:
        for lead in pool.look():
            if lead.harvester != before.harvester:
                return lead
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError("nobody took over")
