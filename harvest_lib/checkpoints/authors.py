"""The leaders that may have written the checkpoint of a shard in Kafka, and the origin that checkpoints name.

A checkpoint names its author: the outbox's identity, the subscription, the leader and its epoch. The row in Postgres
lists all leaders since the last leader that saved, so that a checkpoint of any other leader is detected.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from harvest_lib.outbox.identity import OutboxIdentity
from harvest_lib.record.checkpoint import OutboxCheckpoint

_MOST_LEADERS, _RECENT_LEADERS = 256, 16
"""Most leaders that the row lists, and most leaders after the author of Kafka's checkpoint, once it is known."""


class Authors:
    """The authors of a shard's checkpoints, as its leader knows them."""

    def __init__(self) -> None:
        self.identity: OutboxIdentity | None = None
        """The outbox's identity; None where it is not checked."""
        self.leaders: dict[str, str] = {}
        """By epoch: the leaders since the last that saved, the present leader included."""
        self._origin: dict[str, Any] = {}

    @property
    def origin(self) -> Mapping[str, Any]:
        """Return the origin that checkpoints get from this leader."""
        return self._origin

    def read(self, saved: Mapping[str, Any], epoch: int, leader_id: UUID | None) -> None:
        """Take what the last leader has left in the row."""
        self.leaders = dict(saved.get("leaders", {}))
        self._origin = {"was": saved["was"]} if saved.get("was") else {}
        if leader_id is not None:
            self.leaders[str(epoch)] = str(leader_id)

    def sign(self, row: Mapping[str, Any], epoch: int, leader_id: UUID | None) -> None:
        """Name this leader as the author of checkpoints from now on."""
        self.leaders[str(epoch)] = str(leader_id)
        signature = {**row, "leader_id": str(leader_id), "epoch": epoch}
        self._origin = {"identity": str(self.identity), **self._origin, **signature}

    def add(self, **more: Any) -> None:
        """Add fields to the origin of the checkpoints."""
        self._origin |= more

    def forget_before(self, record: Mapping[str, Any]) -> bool:
        """Forget the leaders before the author of Kafka's checkpoint, which cannot have written a later checkpoint;
        False if there are none."""
        author = str(record.get("epoch"))
        if author not in self.leaders or self.leaders[author] != record.get("leader_id"):
            return False
        since = sorted((each for each in self.leaders if int(each) > int(author)), key=int)[-_RECENT_LEADERS:]
        is_longer = len(since) + 1 < len(self.leaders)
        if is_longer:
            self.leaders = {each: self.leaders[each] for each in (author, *since)}
        return is_longer

    def listed(self) -> Mapping[str, Any]:
        """Return the list for the row: the first and the last leaders, if they are too many."""
        if len(self.leaders) > _MOST_LEADERS:
            # A delivering leader has read Kafka's checkpoint and forgotten most leaders before it: its author is listed
            # early.
            listed, half = sorted(self.leaders, key=int), _MOST_LEADERS // 2
            self.leaders = {each: self.leaders[each] for each in (*listed[:half], *listed[-half:])}
        return {"leaders": self.leaders}

    def saved(self, checkpoint: OutboxCheckpoint) -> Mapping[str, Any]:
        """Return the saver, and the checkpoint's author if that is another: it is still the last in Kafka."""
        if not self._origin:
            return {}
        authors = [each for each in (checkpoint.origin, self._origin) if {"epoch", "leader_id"} <= each.keys()]
        return {**self._origin, "leaders": {str(each["epoch"]): each["leader_id"] for each in authors}}
