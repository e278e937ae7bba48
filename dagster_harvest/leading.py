"""The shards that a run leads, as a tag of the run. The supervisor reads the tags, so that it need not query Kafka.

The tag is written only if leadership has changed. A run that has ended leads nothing, whatever its tag says.
"""

import json
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import dagster as dg

from dagster_harvest.settings import OutboxSettings
from harvest_lib.events import Event, LeaderAcquired, LeaderFenced, LeaderRevoked

LEADS_TAG = "harvest/leads"
"""The tag with the shards that a run leads, its process, and the Unix time of the last change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The leader of a shard. `since` is the Unix time at which its leadership last changed, None if it is unknown."""

    process: str
    since: float | None = None


class Leading:
    """Follows the events of a harvester named `process`. The events of each shard may come from a thread of its own."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._shards: frozenset[int] = frozenset()
        self._since = time.time()
        self._told: frozenset[int] | None = None
        self._lock = threading.Lock()

    def hear(self, event: Event) -> None:
        """Note an event that changes leadership; ignore others."""
        with self._lock:
            before = self._shards
            match event:
                case LeaderAcquired():
                    self._shards |= {event.shard}
                case LeaderRevoked() | LeaderFenced():
                    self._shards -= {event.shard}
                case _:
                    pass
            if self._shards != before:
                self._since = time.time()

    def tell(self, instance: dg.DagsterInstance, run_id: str) -> None:
        """Write the tag if leadership has changed since the last call that succeeded."""
        with self._lock:
            shards, since = self._shards, self._since
        if shards != self._told:
            value = {"shards": sorted(shards), "process": self._process, "since": round(since, 3)}
            instance.add_run_tags(run_id, {LEADS_TAG: json.dumps(value)})
            self._told = shards


def leaders_by_runs(
    instance: dg.DagsterInstance, settings: OutboxSettings, alive: Collection[str] | None = None
) -> Mapping[int, Leader]:
    """Return the leader of each shard that a started run of the outbox leads. If `alive` is given, other runs do
    not count."""
    started = dg.RunsFilter(job_name=settings.daemon_job_name, statuses=[dg.DagsterRunStatus.STARTED])
    found: dict[int, Leader] = {}
    for run in instance.get_runs(started, limit=2 * settings.daemon.runs + 2):
        if LEADS_TAG in run.tags and (alive is None or run.run_id in alive):
            tag = json.loads(run.tags[LEADS_TAG])
            found |= dict.fromkeys(tag["shards"], Leader(process=tag["process"], since=tag["since"]))
    return found
