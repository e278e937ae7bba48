"""checkpoint-regression: the stored checkpoint of a subscription's shard went back.

A generation never falls (a rewind begins a new one), and within a generation the number rises; storing the same again
changes nothing. One whose answer comes late may have been stored at any time since it was asked for: it is behind
another only if that was answered before.
"""

from harvest_lib.audit.checker.finding import Findings
from harvest_lib.audit.history.events import CheckpointWrite, FailoverLoss


class Checkpoints:
    """Follows the checkpoint of each shard of each subscription."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._stored: dict[tuple[str, int], CheckpointWrite] = {}
        self._asked: dict[tuple[str, str, int], CheckpointWrite] = {}

    def failover(self, _event: FailoverLoss) -> None:
        """Take in that a server took over, which may know older ones only."""
        self._stored.clear()

    def checkpoint(self, event: CheckpointWrite) -> None:
        """Take in that a checkpoint is to be stored, or was."""
        of = event.subscription, event.shard
        if event.type == "invoke":
            self._asked[event.process, *of] = event
            return
        asked = self._asked.pop((event.process, *of), None)
        if event.type != "ok":
            return
        before = self._stored.setdefault(of, event)
        was, now = _order(before), _order(event)
        if now < was and asked is not None and asked.time <= before.time:
            return
        self._stored[of] = event
        if now < was or (now == was and event.position != before.position):
            self._findings.add(
                "checkpoint-regression",
                f"checkpoint {now[0]}:{now[1]} of {event.subscription}, shard {event.shard}, was stored after "
                f"{was[0]}:{was[1]}" + (", with another position" if now == was else ""),
                (before, event),
            )


def _order(checkpoint: CheckpointWrite) -> tuple[int, int]:
    return checkpoint.generation, checkpoint.number or 0
