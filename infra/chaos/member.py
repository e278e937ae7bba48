"""A member of the pool of harvesters. It outlives its processes."""

import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

from harvest_lib.native.library import VARIABLE
from infra.chaos.clock import OffClock, clock_of
from infra.chaos.link import Link, Links
from infra.chaos.network_path import NEAR, NetworkPath
from infra.harvester import Harvester, Lead


class Member:
    """A member of the pool: links to every server, and the current harvester process, which uses these links."""

    def __init__(self, name: str, links: Links, brokers: int, folder: Path) -> None:
        self.name = name
        self.network: NetworkPath | None = None
        """The network path at whose end its harvesters are, None for the machine's own network."""
        self.scraped: Link | None = None
        """The link to the metrics of its harvesters, None if they serve no metrics. No fault affects this link."""
        self.clock: OffClock
        self._all_links = links
        self._brokers = brokers
        self._link()
        self.harvester: Harvester | None = None
        self.history = Path()
        """The history file of its last process."""
        self._config = folder / f"{name}.yaml"
        self._folder = folder
        self._started = 0
        self.port = 0
        """The port of the metrics of its harvesters, 0 if they serve no metrics."""

    def move(self, path: NetworkPath) -> None:
        """Put its harvesters at the far end of a network path, and make new links that listen at the near end."""
        self.network = path
        with path.at_servers():
            self._link(NEAR)

    def listen(self, port: int) -> None:
        """Make its harvesters serve their metrics on this port. Call it before anything is started."""
        self.scraped, self.port = self._all_links.add(), port

    def _link(self, host: str = "127.0.0.1") -> None:
        self.postgres: Link = self._all_links.add(host)
        self.kafka: list[Link] = [self._all_links.add(host) for _ in range(self._brokers)]

    @property
    def is_up(self) -> bool:
        return self.harvester is not None and self.harvester.process.pid is not None

    @property
    def is_started(self) -> bool:
        """True if its last process has logged that its start is complete."""
        if self.harvester is not None:
            self.harvester.look()
        return self.harvester is not None and self.harvester.started

    @property
    def process_name(self) -> str:
        """The name of its last process in the history, empty before the first."""
        return f"harvester-{self.harvester.number}" if self.harvester is not None else ""

    @property
    def lead(self) -> Lead | None:
        """The member's term, read from the log of its process; None if it does not lead or its process has ended."""
        harvester = self.harvester
        if harvester is None:
            return None
        harvester.look()
        return harvester.lead if harvester.process.pid is not None else None

    def start(self, config: str, hand_over: str) -> None:
        """Start a new process of this member. `hand_over` is the process's value of `HARVEST_IMPL`."""
        self._started += 1
        self._config.write_text(config)
        self._config.chmod(0o600)
        number = int(f"{self.name[-1]}{self._started:02}")
        self.history = self._folder / "history" / f"harvester-{number}.jsonl"
        asked = (shutil.which("env") or "env", f"{VARIABLE}={hand_over}")
        recorded = (*asked, sys.executable, "-m", "infra.chaos.recording_clients", self.history, "run")
        listening = ("--listen", f"127.0.0.1:{self.port}") if self.scraped else ()
        self.clock = clock_of(self.history)
        self.harvester = Harvester(number, self._config, self._folder, command=(*recorded, *listening))
        inside = self.network.at_harvester if self.network else nullcontext
        if self.scraped:
            self.scraped.forward_to("127.0.0.1", self.port, inside=inside)
        with inside():
            self.harvester.start()

    def heal(self) -> None:
        """Undo all faults of its links."""
        for link in (self.postgres, *self.kafka):
            link.heal()
