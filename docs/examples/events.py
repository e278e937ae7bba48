"""Receive events of leadership and throughput.

    python docs/examples/events.py

HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS are the addresses of Postgres and Kafka, by default on localhost. The outbox
must exist (`harvest init`). Ctrl-C or SIGTERM ends the program.

A handler is called on the harvester's thread, which waits for it, so it should return soon.
"""

import signal
from typing import assert_never

from harvest_lib import (
    Event,
    Harvest,
    HarvestConfig,
    LeaderAcquired,
    LeaderFenced,
    LeaderRefreshed,
    LeaderRevoked,
    MeterRead,
)


def describe(event: Event) -> str:
    """Describe an event; mypy checks that no kind of event is missing."""
    match event:
        case LeaderAcquired(leader_id=leader_id):
            return f"leader acquired: {leader_id}"
        case LeaderRefreshed(leader_id=leader_id):
            return f"leader refreshed: {leader_id}"
        case LeaderRevoked():
            return "leader revoked"
        case LeaderFenced():
            return "leader fenced"
        case MeterRead(stats=stats):
            return (
                f"meter read: {stats.name}, {stats.interval_count} records at {stats.interval_rate:.1f}/s, "
                f"{stats.total_count} in all at {stats.total_rate:.1f}/s"
            )
        case _:
            assert_never(event)


def main() -> None:
    """Harvest, and print every event."""
    harvest = Harvest(HarvestConfig(leader_group_id="example-events"))
    harvest.set_event_handler(lambda event: print(describe(event), flush=True))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: harvest.stop())
    with harvest:
        while not harvest.await_stopped(0.2):
            pass


if __name__ == "__main__":
    main()
