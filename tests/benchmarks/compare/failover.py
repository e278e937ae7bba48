"""Time without new records after the SIGKILL of the process that delivers, and the duplicates that this causes."""

import time
from dataclasses import dataclass

from tests.benchmarks.compare.live import RATE
from tests.benchmarks.compare.peer import Peer, Place
from tests.benchmarks.compare.traffic import traffic

_BEFORE_SECONDS = 10.0
"""So long records are delivered before the kill: unconfirmed ones then come again."""
_AFTER_SECONDS = 3.0
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """Seconds from the kill to the first record committed after it, and what readers of committed records saw."""

    seconds: float
    duplicates: int
    lost: int


def failover(peer: Peer, place: Place) -> Failover:
    """Kill one of two processes under load."""
    peer.make(place)
    with peer.run(place, members=2) as relay, traffic(place, peer.insert_one, RATE) as flow:
        time.sleep(_BEFORE_SECONDS)
        killed = relay.kill_leader()
        seconds = flow.await_first_after(killed) - killed
        time.sleep(_AFTER_SECONDS)
        flow.finish(_PATIENCE_SECONDS)
        return Failover(seconds=seconds, duplicates=flow.duplicates, lost=flow.lost)
