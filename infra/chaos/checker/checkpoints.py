"""checkpoint-regression: the stored checkpoint of a subscription's shard went back.

A generation never falls (a rewind begins a new generation), and the number rises within a generation. Storing a
checkpoint twice changes nothing. A checkpoint may have been stored at any time between its request and its answer, so
a lower checkpoint is a regression only if the higher was answered before the lower was requested. A failover replaces
all checkpoints by the checkpoints of the new server.
"""

from typing import NamedTuple

from infra.chaos.checker.finding import Findings
from infra.chaos.history.events import CheckpointWrite, FailoverLoss


class _Stored(NamedTuple):
    """The stored checkpoint of a shard: its generation and number, and the event that shows it."""

    order: tuple[int, int]
    by: CheckpointWrite | FailoverLoss

    @property
    def position(self) -> object:
        """Return the checkpoint's position, None if it is unknown."""
        return self.by.position if isinstance(self.by, CheckpointWrite) else None


class Checkpoints:
    """Follows the checkpoint of each shard of each subscription."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._stored: dict[tuple[str, int], _Stored] = {}
        self._asked: dict[tuple[str, str, int], CheckpointWrite] = {}

    def failover(self, event: FailoverLoss) -> None:
        """Replace all stored checkpoints by the checkpoints of the server that took over."""
        self._stored = {
            (each.subscription, each.shard): _Stored((each.generation, each.number), event)
            for each in event.checkpoints
        }

    def checkpoint(self, event: CheckpointWrite) -> None:
        of = event.subscription, event.shard
        if event.type == "invoke":
            self._asked[event.process, *of] = event
            return
        asked = self._asked.pop((event.process, *of), None)
        if event.type != "ok":
            return
        stored = _Stored((event.generation, event.number or 0), event)
        before = self._stored.setdefault(of, stored)
        was, now = before.order, stored.order
        if now < was and asked is not None and asked.time <= before.by.time:
            return
        self._stored[of] = stored
        is_another = before.position is not None and event.position != before.position
        if now < was or (now == was and is_another):
            self._findings.add(
                "checkpoint-regression",
                f"checkpoint {now[0]}:{now[1]} of {event.subscription}, shard {event.shard}, was stored after "
                f"{was[0]}:{was[1]}" + (", with another position" if now == was else ""),
                (before.by, event),
            )
