"""checkpoint-regression: the stored checkpoint of a subscription's shard went back.

A generation never falls (a rewind begins a new one), and within a generation the number rises; storing the same again
changes nothing.
"""

from harvest_lib.audit.checker.finding import Findings
from harvest_lib.audit.history import Checkpoint, Regress


class Checkpoints:
    """Follows the checkpoint of each shard of each subscription."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._stored: dict[tuple[str, int], Checkpoint] = {}

    def regress(self, _event: Regress) -> None:
        """Take in that a server took over, which may know older ones only."""
        self._stored.clear()

    def checkpoint(self, event: Checkpoint) -> None:
        """Take in a checkpoint that was stored."""
        if event.type != "ok":
            return
        of = event.subscription, event.shard
        before = self._stored.get(of)
        self._stored[of] = event
        if before is None:
            return
        was, now = _order(before), _order(event)
        if now < was or (now == was and event.position != before.position):
            self._findings.add(
                "checkpoint-regression",
                f"checkpoint {now[0]}:{now[1]} of {event.subscription}, shard {event.shard}, was stored after "
                f"{was[0]}:{was[1]}" + (", with another position" if now == was else ""),
                (before, event),
            )


def _order(checkpoint: Checkpoint) -> tuple[int, int]:
    return checkpoint.generation, checkpoint.number or 0
