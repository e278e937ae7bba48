"""The interface of a relay that is compared."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from harvest_lib.local_stack.process import ServerProcess
from tests.benchmarks.backlog import Servers


class LeftOutError(Exception):
    """This relay cannot be had on this machine; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The servers, a folder for logs and configurations, and the servers' process ids."""

    servers: Servers
    folder: Path
    pids: tuple[int, ...]

    def with_topic(self, topic: str) -> "Place":
        """Return the same with another topic, which is made."""
        servers = replace(self.servers, topic=topic)
        servers.make_topic()
        return replace(self, servers=servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Versions and configuration of a relay, as a reader would write it, without secrets."""

    versions: Mapping[str, str]
    configuration: str


class Running(Protocol):
    """The processes of a relay, of which one delivers."""

    @property
    def processes(self) -> Sequence[ServerProcess]:
        """Those that live."""

    def pause(self) -> None:
        """Deliver nothing from now on."""

    def resume(self) -> None:
        """Deliver again; returns when the relay is about to."""

    def kill_leader(self) -> float:
        """SIGKILL the process that delivers, and return when, by `time.time()`."""


class Peer(Protocol):
    """A relay and its outbox."""

    @property
    def name(self) -> str:
        """Its name in a report."""

    @property
    def title(self) -> str:
        """Its name for a reader."""

    @property
    def share(self) -> float:
        """So much of a backlog it drains: one that is slow shows its rate with less."""

    @property
    def insert_one(self) -> str:
        """SQL that inserts one record of a topic, a key and a value."""

    def build(self, state: Path) -> Built:
        """Bring or build it, once. Raises LeftOutError."""

    def make(self, place: Place) -> None:
        """Make its outbox, empty."""

    def insert(self, place: Place, records: int) -> None:
        """Add a backlog."""

    def run(self, place: Place, *, members: int) -> AbstractContextManager[Running]:
        """Run so many processes; one of them is ready to deliver when this is entered."""
