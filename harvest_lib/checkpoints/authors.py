"""The possible authors of a shard's checkpoint in Kafka, and the `origin` of checkpoints.

The origin of a checkpoint identifies its author: the outbox's identity, the subscription, the leader and its epoch. The
subscription's row in Postgres lists the last leader that saved a checkpoint, and all later leaders. So a checkpoint in
Kafka by any other leader is detected.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from harvest_lib.outbox.identity import OutboxIdentity
from harvest_lib.record.checkpoint import OutboxCheckpoint

_MOST_LEADERS, _RECENT_LEADERS = 256, 16
"""Two maximum numbers of leaders in the row: of all leaders, and of leaders after the author of Kafka's checkpoint."""


class Authors:
    """The possible authors of a shard's checkpoints, as this process has read them from the shard's row."""

    def __init__(self) -> None:
        self.identity: OutboxIdentity | None = None
        """The outbox's identity; None if the identity is not checked."""
        self.leaders: dict[str, str] = {}
        """The leader id of each epoch, from the last leader that saved a checkpoint up to the current leader."""
        self._origin: dict[str, Any] = {}

    @property
    def origin(self) -> Mapping[str, Any]:
        """The origin that this leader writes into checkpoints."""
        return self._origin

    def read(self, saved: Mapping[str, Any], epoch: int, leader_id: UUID | None) -> None:
        """Read leaders and origin from `saved`, the row's checkpoint. Then add the row's last leader, given by `epoch`
        and `leader_id`."""
        self.leaders = dict(saved.get("leaders", {}))
        self._origin = {"was": saved["was"]} if saved.get("was") else {}
        if leader_id is not None:
            self.leaders[str(epoch)] = str(leader_id)

    def sign(self, row: Mapping[str, Any], epoch: int, leader_id: UUID | None) -> None:
        """Make this leader the author of all later checkpoints."""
        self.leaders[str(epoch)] = str(leader_id)
        signature = {**row, "leader_id": str(leader_id), "epoch": epoch}
        self._origin = {"identity": str(self.identity), **self._origin, **signature}

    def add(self, **more: Any) -> None:
        """Add fields to the origin of the checkpoints."""
        self._origin |= more

    def forget_before(self, record: Mapping[str, Any]) -> bool:
        """Remove the leaders before the author of Kafka's checkpoint, since these leaders cannot write a later
        checkpoint. Return False if no leader was removed."""
        author = str(record.get("epoch"))
        if author not in self.leaders or self.leaders[author] != record.get("leader_id"):
            return False
        since = sorted((each for each in self.leaders if int(each) > int(author)), key=int)[-_RECENT_LEADERS:]
        is_longer = len(since) + 1 < len(self.leaders)
        if is_longer:
            self.leaders = {each: self.leaders[each] for each in (author, *since)}
        return is_longer

    def listed(self) -> Mapping[str, Any]:
        """Return the leaders to list in the row. If there are too many, return only the first and the last leaders."""
        if len(self.leaders) > _MOST_LEADERS:
            # A leader that delivers has read Kafka's checkpoint, and removed most leaders before the checkpoint's
            # author. So the author is among the first leaders.
            listed, half = sorted(self.leaders, key=int), _MOST_LEADERS // 2
            self.leaders = {each: self.leaders[each] for each in (*listed[:half], *listed[-half:])}
        return {"leaders": self.leaders}

    def saved(self, checkpoint: OutboxCheckpoint) -> Mapping[str, Any]:
        """Return the fields to add to a checkpoint that is saved: this leader's origin; and `leaders`, with this leader
        and the checkpoint's author. The author may be another leader, which wrote the last checkpoint in Kafka."""
        if not self._origin:
            return {}
        authors = [each for each in (checkpoint.origin, self._origin) if {"epoch", "leader_id"} <= each.keys()]
        return {**self._origin, "leaders": {str(each["epoch"]): each["leader_id"] for each in authors}}
