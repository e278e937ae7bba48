"""Identity of a pool, as its processes publish it: its election and the outbox that it harvests. Compares identities.

Two processes belong to the same pool if they stand in the same election for the same outbox. The host of a process and
the address by which it reaches Postgres do not identify a pool: both may change while the pool runs.
"""

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from uuid import UUID

from harvest_lib.errors import PoolConflict

_log = logging.getLogger(__name__)

ELECTION = frozenset({"leadership", "group", "leader_topic", "cluster"})
"""The fields that identify an election."""
OUTBOX = frozenset({"database", "table"})
"""The fields that identify an outbox."""
SUBSCRIPTION = frozenset({"subscription"})
DELIVERY = frozenset({"delivery", "fence"})
"""The fields that decide the delivery guarantee for readers."""

_KNOWN_BY = {"fence": "delivery"}
"""Fields whose empty value has a meaning. Such a field is known if the field to which it is mapped here is not empty.
Any other field is unknown if it is empty."""

_LOGGED = ("group", "process", "server", "table", "leader_topic")
_LONGEST_TEXT, _MOST_LOGGED = 300, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool, and the process that describes it. Unknown fields are empty."""

    leadership: str
    group: str = ""
    leader_topic: str = ""
    cluster: str = ""
    """The id of the Kafka cluster that holds the election."""
    process: str = ""
    """The name of the process: by default host, process id and start time."""
    server: str = ""
    """`host:port/database`, only for operators, as other processes may reach the same server by another address."""
    database: str = ""
    """The server's system identifier and the database's oid."""
    table: str = ""
    """`schema.table` of the outbox."""
    subscription: str = ""
    delivery: str = ""
    fence: str = ""
    """The means by which the process fences a former leader, see `last_leaders`; empty if it does not fence."""

    def as_json(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def of_json(cls, value: object) -> "Pool | None":
        """Return the pool from a `value` that a process has published, with long texts cut off. Return None if `value`
        is not a pool."""
        if not isinstance(value, Mapping) or not isinstance(value.get("leadership"), str):
            return None
        known = {field.name for field in fields(cls)}
        return cls(
            **{name: text[:_LONGEST_TEXT] for name, text in value.items() if name in known and isinstance(text, str)}
        )

    def differences(self, other: "Pool") -> frozenset[str]:
        """Return the names of the identifying fields in which the two pools differ. A field that is unknown in either
        pool does not count."""
        ours, theirs = self.as_json(), other.as_json()
        different = {name for name in (*ELECTION, *OUTBOX, *SUBSCRIPTION, *DELIVERY) if ours[name] != theirs[name]}
        return frozenset(name for name in different if all(each[_KNOWN_BY.get(name, name)] for each in (ours, theirs)))

    def is_one_election(self, other: "Pool") -> bool:
        """Return True if the known fields show no difference between the elections of the two pools."""
        return not self.differences(other) & ELECTION

    def __str__(self) -> str:
        topic = f", leader topic {self.leader_topic!r}" if self.leader_topic else ""
        return (
            f"group {self.group!r} ({self.leadership}{topic}), process {self.process!r}, "
            f"outbox {self.table} in {self.server}"
        )


def conflict_on_outbox(ours: Pool, theirs: Pool) -> PoolConflict | None:
    """Return the conflict of two processes on the same outbox. Return None if the processes belong to the same pool and
    have the same delivery, or if each process has its own subscription and its own election."""
    if ours.differences(theirs) & SUBSCRIPTION:
        is_elected = ours.leadership != "solo" and bool(ours.group) and ours.is_one_election(theirs)
        return conflict_in_group(ours, theirs) if is_elected else None
    if not ours.is_one_election(theirs):
        return _two_elections(ours, theirs)
    return _two_deliveries(ours, theirs) if ours.differences(theirs) & DELIVERY else None


def conflict_in_group(ours: Pool, theirs: Pool) -> PoolConflict | None:
    """Return the conflict of two processes in the same consumer group; None if both belong to the same pool."""
    different = ours.differences(theirs)
    if not different & {*OUTBOX, *SUBSCRIPTION, "leader_topic"}:
        return None
    moved = "; if the outbox was moved, stop all processes of the former database first"
    waits = "outbox" if different & OUTBOX or not different & SUBSCRIPTION else f"subscription {theirs.subscription!r}"
    return PoolConflict(  # while either leads, the other waits
        f"another pool stands in this election: {theirs}",
        evidence=f"this pool is {ours}: whichever leads, no process harvests the other's {waits}",
        next_step="give each pool a `leaderGroupID` and a `leaderTopic` of its own, the same in all of its processes"
        f"{moved if 'database' in different else ''}",
        theirs=theirs.as_json(),
    )


def _two_elections(ours: Pool, theirs: Pool) -> PoolConflict:
    """Return the error for two pools with different elections on the same subscription. Such pools would depose each
    other without end."""
    elsewhere = (
        f"; theirs is held in another Kafka cluster ({theirs.cluster}, ours {ours.cluster})"
        if "cluster" in ours.differences(theirs)
        else ""
    )
    return PoolConflict(
        f"another pool harvests the subscription {ours.subscription!r} of this outbox: {theirs}",
        evidence=f"this pool is {ours}: two elections, so each would depose the other without end{elsewhere}",
        next_step="stop one of the two; or give all processes the same `leadership`, `leaderGroupID` and "
        f"`leaderTopic`{_as_theirs(ours, theirs)}; or give either pool a `subscription` of its own, if all records "
        "are to be delivered twice",
        theirs=theirs.as_json(),
    )


def _as_theirs(ours: Pool, theirs: Pool) -> str:
    """Return the settings of the other pool if it has the same group and another kind of election, because a pool's
    processes may be restarted with new settings one by one. Return an empty string in all other cases."""
    if ours.group != theirs.group or ours.leadership == theirs.leadership:
        return ""
    delivery = f" and `delivery: {theirs.delivery}`" if theirs.delivery else ""
    return f" (theirs: `leadership: {theirs.leadership}`{delivery})"


def _two_deliveries(ours: Pool, theirs: Pool) -> PoolConflict:
    """Return the error for two processes of the same pool with different deliveries. The guarantee for readers depends
    on which process leads. No record is lost, because each process waits until the other's term is certainly over."""
    return PoolConflict(
        f"a process of this pool delivers by {theirs.delivery!r}, not by {ours.delivery!r}: {theirs}",
        evidence=f"this process is {ours}: the promise to readers changes with the leader, and failover between the "
        "two takes a session timeout",
        next_step="give all processes of the pool the same `delivery`, `source` and `checkpointTopic`, and restart "
        "the changed processes",
        theirs=theirs.as_json(),
    )


class ConflictLog:
    """Logs the conflicts of this process with other processes, once for each other process."""

    def __init__(self) -> None:
        self._logged: deque[Pool | None] = deque(maxlen=_MOST_LOGGED)

    def log(self, error: PoolConflict) -> None:
        """Log a conflict if no conflict with the same process was logged before."""
        theirs = Pool.of_json(error.theirs)
        if theirs in self._logged:
            return
        self._logged.append(theirs)
        _log.error(
            "pool_conflict",
            extra={
                "reason": f"{error.cause}; {error.evidence}",
                "next_step": error.next_step,
                **{f"their_{name}": error.theirs.get(name, "") for name in _LOGGED},
            },
        )


def announced(leader_id: UUID | str) -> str:
    """Return the application name of a leader's connection for checkpoints. The connection is open while the leader is
    alive."""
    return f"harvest leader {leader_id}"
