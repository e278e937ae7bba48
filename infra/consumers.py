"""Consumers as processes that can be killed, frozen and thawed. Their events are read from their logs."""

import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

from harvest_lib.local_stack.process import ServerProcess
from infra.log_lines import JsonLines
from infra.processes import environment
from infra.waiting import until

SHORT_SESSION = ("--set", "session.timeout.ms=2000", "--set", "heartbeat.interval.ms=300")
"""Options for a short session. Brokers permit less than 6 s only with a lower `group.min.session.timeout.ms`."""

_STOP_SECONDS = 20.0
_WAIT_SECONDS = 60.0


class ConsumerPool:
    """The members of a consumer group, numbered from 0. A member keeps its number when its process is replaced."""

    def __init__(
        self, module: str, arguments: Sequence[str], *, size: int, variables: Mapping[str, str], folder: Path
    ) -> None:
        """`variables` are added to the environment of the processes: the DSN, which must not be in a command line."""
        self.kills = self.freezes = 0
        self.fenced = 0
        """Number of refused transactions of members that had been frozen, as of the last `look`."""
        self._command = [sys.executable, "-m", module, *arguments]
        self._environment = {**environment(), **variables}
        self._folder = folder
        self._random = random.Random()  # noqa: S311 - nothing is kept secret by it
        self._members = [
            ServerProcess(
                f"consumer {number}",
                log=folder / f"consumer-{number}.log",
                stop_signals={signal.SIGTERM: _STOP_SECONDS},
            )
            for number in range(1, size + 1)
        ]
        self._logs = [JsonLines(member.log) for member in self._members]
        self._were_frozen: set[int] = set()  # members that were frozen, and not killed since
        self._owner: dict[str, int] = {}  # the owner of each shard: the last member that began to process it

    def start(self) -> None:
        """Start all members, and return at once."""
        for member in self._members:
            member.spawn(self._command, environment=self._environment)

    def inject_faults(self, written: Callable[[], int], taken: Callable[[], int]) -> None:
        """Kill a member and freeze another, at a random time. Thaw the frozen member when others have its partitions.

        `written` and `taken` return the numbers of messages that were written and processed so far. This call returns
        when all messages written up to the thaw are processed. Raises StackError if that takes too long.
        """
        self._await(lambda: all(map(self.owns, range(len(self._members)))), "a consumer is given no partition")
        killed, frozen = self._random.sample(range(len(self._members)), 2)
        time.sleep(self._random.random())
        self.freeze(frozen)
        self.kill(killed)
        self._await(lambda: not self.owns(frozen), "no consumer gets the partitions of a frozen consumer")
        self.thaw(frozen)
        goal = written()
        self._await(lambda: taken() >= goal, "consumers do not catch up")

    def _await(self, condition: Callable[[], bool], otherwise: str) -> None:
        until(condition, _WAIT_SECONDS, otherwise, next_step=f"read the logs in {self._folder}", watched=[self.look])

    def kill(self, member: int) -> None:
        """SIGKILL the process of a member, and start a new process of it."""
        self._members[member].kill()
        self.look()
        self._were_frozen.discard(member)
        self._forget(member)
        self.kills += 1
        self._members[member].spawn(self._command, environment=self._environment)

    def freeze(self, member: int) -> None:
        """Freeze the process of a member (SIGSTOP)."""
        self.look()
        self._members[member].suspend()
        self._were_frozen.add(member)
        self.freezes += 1

    def thaw(self, member: int) -> None:
        """Let the process of a frozen member continue."""
        self._members[member].resume()

    def owns(self, member: int) -> bool:
        """Return True if a member owns at least one partition, as of the last `look`."""
        return member in self._owner.values()

    def look(self) -> None:
        """Read the new lines of all logs, and update the owners and the counts."""
        said = [
            (line.get("timestamp", ""), number, line) for number, log in enumerate(self._logs) for line in log.new()
        ]
        for _, member, line in sorted(said, key=itemgetter(0)):
            match line.get("event"):
                case "shard_fenced":
                    self.fenced += member in self._were_frozen
                case "shard_begins":
                    self._owner[line["shard"]] = member
                case "shard_ends":
                    self._forget(member, line["shard"])

    def _forget(self, member: int, *shards: str) -> None:
        self._owner = {
            shard: owner for shard, owner in self._owner.items() if owner != member or (shards and shard not in shards)
        }

    def stop(self) -> None:
        """Stop all members, by SIGTERM and then by force."""
        for member in self._members:
            member.begin_stop()
        for member in self._members:
            member.stop()
        self.look()
