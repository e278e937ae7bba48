"""Our own relay: exactly once on the native table, and at least once on goharvest's."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from harvest_lib.local_stack.process import ServerProcess
from infra.harvester import Harvester
from tests.benchmarks.compare.peer import Built, Place
from tests.benchmarks.compare.pool import Pool, running

PRODUCT = "outbox-harvester"

_INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (now(), %s, %s, %s, '{}', '{}')
"""


class _Member:
    """A `harvest run` process."""

    def __init__(self, harvester: Harvester) -> None:
        self.process: ServerProcess = harvester.process
        self._harvester = harvester

    def start(self) -> None:
        self._harvester.lead = None
        self._harvester.start()

    def leads(self) -> bool:
        self._harvester.look()
        return self._harvester.lead is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A harvester with some settings, and the default limits."""

    name: str
    title: str
    settings: Mapping[str, Any]
    native: bool
    share: float = 1.0
    insert_one: str = _INSERT

    def build(self, state: Path) -> Built:  # noqa: ARG002 - there is nothing to build
        """Say what is installed."""
        settings = self._yaml("KAFKA", self.name, "POSTGRES")
        return Built(versions={"outbox-harvester": version("outbox-harvester")}, configuration=settings)

    def make(self, place: Place) -> None:
        """Make the native table, or goharvest's."""
        if self.native:
            place.servers.make_native()
        else:
            place.servers.fill(0)

    def insert(self, place: Place, records: int) -> None:
        """Add a backlog."""
        place.servers.insert(records)
        place.servers.settle()

    def run(self, place: Place, *, members: int) -> AbstractContextManager[Pool]:
        """Run `harvest run` so many times."""
        servers, config = place.servers, place.folder / f"{self.name}.yaml"
        config.write_text(self._yaml(servers.bootstrap_servers, servers.topic, servers.dsn))
        made = [Harvester(number, config, place.folder / servers.topic) for number in range(1, members + 1)]
        return running([_Member(each) for each in made])

    def _yaml(self, bootstrap_servers: str, group: str, dsn: str) -> str:
        harvest = {
            "baseKafkaConfig": {"bootstrap.servers": bootstrap_servers},
            "producerKafkaConfig": {"compression.type": "lz4"},
            "leaderGroupID": group,
            "dataSource": dsn,
            **self.settings,
        }
        return yaml.safe_dump({"harvest": harvest}, sort_keys=False)


EXACTLY_ONCE = Ours(
    name="exactly-once",
    title=f"{PRODUCT}, exactly once",
    native=True,
    settings={"delivery": "transactional", "leadership": "postgres"},
)
BARRIER = Ours(
    name="barrier",
    title=f"{PRODUCT}, goharvest's table",
    native=False,
    settings={"source": "mark", "delivery": "barrier"},
)
