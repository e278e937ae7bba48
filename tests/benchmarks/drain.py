"""The harvester itself, from the moment it leads until the last record is in Kafka and out of the table."""

import time
from dataclasses import dataclass
from uuid import uuid4

from harvest_lib.config import HarvestConfig
from harvest_lib.events import Event, LeaderAcquired
from harvest_lib.harvester.factory import make_source
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import OutboxTable
from tests.benchmarks.backlog import Servers
from tests.support.counting import CountingSource

_LOOK_SECONDS = 0.005
_LONGEST_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """One drain: records per second, and statements per 1,000 records."""

    rate: float
    statements: float


def drain(servers: Servers, records: int, *, delivery: str, lanes: int) -> Drain:
    """Harvest the whole backlog."""
    config = HarvestConfig(
        data_source=servers.dsn,
        base_kafka_config={"bootstrap.servers": servers.bootstrap_servers},
        producer_kafka_config={"compression.type": "lz4"},
        leadership="solo",
        delivery=delivery,
        limits={"mark_query_records": 5_000, "max_in_flight_records": 20_000, "send_concurrency": lanes},
    )
    source = CountingSource(make_source(config, OutboxTable.parse("outbox")))
    began = 0.0

    def watch(event: Event) -> None:
        nonlocal began
        if isinstance(event, LeaderAcquired):
            began = time.perf_counter()

    harvest = Harvest(config, source=source)
    harvest.set_event_handler(watch)
    with harvest:
        while harvest.delivered_records < records:
            if harvest.await_stopped(_LOOK_SECONDS) or (began and time.perf_counter() - began > _LONGEST_SECONDS):
                raise RuntimeError(f"only {harvest.delivered_records} of {records} records were delivered")
        seconds = time.perf_counter() - began
    return Drain(rate=records / seconds, statements=source.worked / records * 1_000)


def drain_batches(servers: Servers, records: int, *, delivery: str, **more: object) -> float:
    """Return records per second of a harvest in batches, from the moment it leads; the subscription continues.

    `more` are settings; a `leader_group_id` of its own gives it a checkpoint topic of its own.
    """
    config = HarvestConfig(
        data_source=servers.dsn,
        base_kafka_config={"bootstrap.servers": servers.bootstrap_servers},
        producer_kafka_config={"compression.type": "lz4"},
        leadership="solo",
        delivery=delivery,
        **{"leader_group_id": f"bench-{uuid4().hex[:8]}", **more},
    )
    began = 0.0

    def watch(event: Event) -> None:
        nonlocal began
        if isinstance(event, LeaderAcquired):
            began = time.perf_counter()

    harvest = Harvest(config)
    harvest.set_event_handler(watch)
    with harvest:
        while harvest.delivered_records < records:
            if harvest.await_stopped(_LOOK_SECONDS) or (began and time.perf_counter() - began > _LONGEST_SECONDS):
                raise RuntimeError(f"only {harvest.delivered_records} of {records} records were delivered")
        return records / (time.perf_counter() - began)
