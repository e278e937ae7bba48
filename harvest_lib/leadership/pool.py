"""Identity of a pool: its election and the outbox that it harvests, as its processes publish them.

Two processes belong to one pool if they stand in the same election for the same outbox. Neither the host a process runs
on, nor the address by which it reaches Postgres, is part of that: both change in the life of a pool.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any
from uuid import UUID

from harvest_lib.errors import PoolConflict

_LONGEST_TEXT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool, and the process that speaks for it. Unknown fields are empty."""

    leadership: str
    group: str = ""
    leader_topic: str = ""
    cluster: str = ""
    """The id of the Kafka cluster that holds the election."""
    process: str = ""
    """The name of the process: host, process id and start time, unless it was given another."""
    server: str = ""
    """`host:port/database`, for operators: others may reach the same server by another address."""
    database: str = ""
    """The server's system identifier and the database's oid."""
    table: str = ""
    """`schema.table` of the outbox."""
    subscription: str = ""
    delivery: str = ""
    fence: str = ""
    """The means by which it fences a former leader, see `last_leaders`; empty if it does not."""

    def as_json(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def of_json(cls, value: object) -> "Pool | None":
        """Return the pool that a process has published, cut to a sensible length; None if that is no pool."""
        if not isinstance(value, Mapping) or not isinstance(value.get("leadership"), str):
            return None
        known = {field.name for field in fields(cls)}
        return cls(
            **{name: text[:_LONGEST_TEXT] for name, text in value.items() if name in known and isinstance(text, str)}
        )

    def is_one_election(self, other: "Pool") -> bool:
        """Return True if both stand in one election, as far as is known."""
        same = (self.leadership, self.group, self.leader_topic) == (other.leadership, other.group, other.leader_topic)
        return same and (self.cluster == other.cluster or not self.cluster or not other.cluster)

    def is_one_outbox(self, other: "Pool") -> bool:
        """Return True if both harvest one outbox, as far as is known."""
        unknown = not self.database or not other.database
        return unknown or (self.database, self.table) == (other.database, other.table)

    def __str__(self) -> str:
        topic = f", leader topic {self.leader_topic!r}" if self.leader_topic else ""
        return (
            f"group {self.group!r} ({self.leadership}{topic}), process {self.process!r}, "
            f"outbox {self.table} in {self.server}"
        )


def one_outbox(ours: Pool, theirs: Pool) -> PoolConflict:
    """Return the error of two pools that harvest one subscription of one outbox: each would depose the other."""
    elsewhere = (
        f"; theirs is held in another Kafka cluster ({theirs.cluster}, ours {ours.cluster})"
        if ours.cluster and theirs.cluster and ours.cluster != theirs.cluster
        else ""
    )
    return PoolConflict(
        f"another pool harvests the subscription {ours.subscription!r} of this outbox: {theirs}",
        evidence=f"this pool is {ours}: two elections, so each would depose the other without end{elsewhere}",
        next_step="stop one of the two; or give all processes the same `leadership`, `leaderGroupID` and "
        f"`leaderTopic`{_as_theirs(ours, theirs)}; or give one pool a `subscription` of its own, if all is to be "
        "delivered twice",
        theirs=theirs.as_json(),
    )


def _as_theirs(ours: Pool, theirs: Pool) -> str:
    """Name the settings of a pool that has our name and elects otherwise: it may be of before an upgrade."""
    if ours.group != theirs.group or ours.leadership == theirs.leadership:
        return ""
    delivery = f" and `delivery: {theirs.delivery}`" if theirs.delivery else ""
    return f" (theirs: `leadership: {theirs.leadership}`{delivery})"


def other_delivery(ours: Pool, theirs: Pool) -> PoolConflict:
    """Return what is wrong with two processes of one pool that deliver otherwise: whichever leads decides what is
    promised. Nothing is lost by it: each waits until the other is surely over."""
    return PoolConflict(
        f"a process of this pool delivers by {theirs.delivery!r}, not by {ours.delivery!r}: {theirs}",
        evidence=f"this process is {ours}: what readers are promised changes with the leader, and failover between the "
        "two takes a session timeout",
        next_step="give all processes of the pool the same `delivery`, `source` and `checkpointTopic`, and restart "
        "those that had another",
        theirs=theirs.as_json(),
    )


def one_group(ours: Pool, theirs: Pool) -> PoolConflict:
    """Return the error of two pools in one election: while one leads, the outbox of the other waits."""
    return PoolConflict(
        f"another pool stands in this election: {theirs}",
        evidence=f"this pool is {ours}: whichever leads, nobody harvests the other's outbox",
        next_step="give each pool a `leaderGroupID` and a `leaderTopic` of its own, the same in all of its processes",
        theirs=theirs.as_json(),
    )


def announced(leader_id: UUID | str) -> str:
    """Return the application name of the connection on which a leader keeps its checkpoints, as long as it lives."""
    return f"harvest leader {leader_id}"


def log_fields(error: PoolConflict) -> dict[str, Any]:
    """Return the log fields of a conflict."""
    theirs = error.theirs
    return {
        "reason": f"{error.cause}; {error.evidence}",
        "next_step": error.next_step,
        "their_group": theirs.get("group", ""),
        "their_process": theirs.get("process", ""),
        "their_server": theirs.get("server", ""),
        "their_table": theirs.get("table", ""),
        "their_leader_topic": theirs.get("leader_topic", ""),
    }
