"""Choice of the valid checkpoint: the checkpoint in Kafka, or its mirror in Postgres. Pure, except for its callbacks.

Promises
- A checkpoint of another outbox is never chosen, even if all names are equal. A record that does not identify its
  outbox is not chosen either.
- A checkpoint that no leader of this subscription and shard can have written is never chosen: a checkpoint with an
  epoch that Postgres did not assign, a leader that Postgres has not recorded, a future generation, or an invalid
  position.
- After a failover, Postgres may have lost epochs that it had assigned. So epochs of another timeline are not checked.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harvest_lib.checkpoints.record import begin_anew
from harvest_lib.errors import CheckpointError, ServerRegressed
from harvest_lib.outbox.identity import OutboxIdentity
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source.mark_batches import decode_ids
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.source.server_identity import lsn_number, remedy_of

_SETTINGS = {"group": "`leaderGroupID`", "topic": "`checkpointTopic`"}
_GENERATION_SLACK_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChoice:
    """Chooses between a checkpoint in Kafka and `mirror`, the checkpoint in Postgres. `outbox` is the name of database
    and table, for errors. `identity` is None if the outbox's identity is not checked. `leaders` maps each epoch to the
    leader id that Postgres has recorded for the epoch."""

    mirror: OutboxCheckpoint
    place: str
    """Text that describes the location of the checkpoint in Kafka, for errors."""
    outbox: str
    identity: OutboxIdentity | None = None
    subscription: str = ""
    shard: int = 0
    source: str = ""
    timeline: str | None = None
    """The current timeline of the server; None if unknown."""
    leaders: Mapping[str, str] = field(default_factory=dict)
    difference: Callable[[Mapping[str, Any]], str] = lambda _record: ""
    """Function that compares a checkpoint's outbox with this outbox. It returns `server` for an outbox on another
    server, `table` for another table on this server, and an empty text for this outbox."""
    written_under: Mapping[str, Any] = field(default_factory=dict)
    """The current group, topic name and topic id, under which checkpoints are written to Kafka."""

    def owns(self, record: Mapping[str, Any]) -> bool:
        """Return True if a checkpoint in Kafka belongs to this outbox. A checkpoint with an earlier identity of the
        outbox counts too, if an operator has confirmed that identity."""
        return record.get("identity") in self.mirror.origin.get("was", ()) or not self.difference(record)

    def judge(self, record: Mapping[str, Any]) -> str:
        """Return why a checkpoint cannot come from a leader of this subscription and shard; empty if it can.

        Two kinds of checkpoints are not judged here: checkpoints of another outbox or generation, which `newest`
        handles, and checkpoints that the mirror has superseded.
        """
        mirror = self.mirror
        if self.identity is not None and "identity" not in record:
            return "it does not name the outbox that it is of"
        if not self.owns(record) or record["generation"] < mirror.generation:
            return ""
        try:
            _check_position(record["position"], self.source)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            return f"its position is none of source {self.source}: {error!r}"[:200]
        if record["generation"] > time.time() + _GENERATION_SLACK_SECONDS:
            return f"its generation is {record['generation']}: generations begin with the time that they are made at"
        if self.identity is None or record["generation"] != mirror.generation:
            return ""
        if mirror.kept_in != "kafka" and record["number"] <= mirror.number:
            return ""
        if (record.get("subscription"), record.get("shard")) != (self.subscription, self.shard):
            return f"it is of subscription {record.get('subscription')!r}, shard {record.get('shard')!r}"
        if self.is_of_another_timeline(record):
            return ""
        epoch, leader_id = record.get("epoch"), record.get("leader_id")
        if str(epoch) not in self.leaders:
            return f"it is of epoch {epoch!r}, which Postgres gave to no leader since the mirror was written"
        if self.leaders[str(epoch)] != leader_id:
            return f"it is of leader {leader_id!r}, but epoch {epoch} was that of {self.leaders[str(epoch)]}"
        return ""

    def is_of_another_timeline(self, record: Mapping[str, Any]) -> bool:
        """Return True if a standby was promoted after the checkpoint or its mirror was written."""
        at_mirror = _timeline(self.mirror.origin, self.mirror.position) or self.timeline
        written = {at_mirror, _timeline(record, record["position"]) or at_mirror}
        return self.timeline is not None and written != {self.timeline}

    def newest(self, record: Mapping[str, Any] | None) -> OutboxCheckpoint:
        """Return the valid checkpoint of the subscription: the record in Kafka, or the mirror in Postgres.

        The record in Kafka is valid, unless the subscription was later rewound, or delivered without transactions.
        Raises CheckpointError if Kafka's checkpoint belongs to another outbox, or has a higher generation than the
        mirror. Also raises CheckpointError if Kafka's checkpoint is lost: missing, or older than the mirror. Raises
        ServerRegressed as `check_witness` does.
        """
        if record is not None:
            self.check_outbox(record)
        mirror, theirs = self.mirror, OutboxCheckpoint.of_json(record) if record is not None else None
        if theirs is not None and theirs.generation > mirror.generation:
            raise CheckpointError(
                f"{self.place} is ahead of the database",
                evidence=f"generation {theirs.generation}, the table's {mirror.generation}: was the database restored?",
                next_step=f"anchor the subscription again: {begin_anew(self.subscription, mirror)}",
            )
        if record is not None:
            self.check_witness(record)
        if mirror.kept_in != "kafka":
            is_later = theirs is not None and theirs.generation == mirror.generation and theirs.number > mirror.number
            return replace(theirs, kept_in="kafka") if theirs is not None and is_later else mirror
        if theirs is None or (theirs.generation, theirs.number) < (mirror.generation, mirror.number):
            raise self._behind(theirs)
        return replace(theirs, kept_in="kafka")

    def check_witness(self, record: Mapping[str, Any]) -> None:
        """Raise ServerRegressed if the row's witness (its number of writes) is lower than in a checkpoint in Kafka.

        A lower witness shows that the server, and the row with it, was restored to an earlier time. Later writes to the
        outbox cannot hide that.
        """
        number, theirs, ours = record["number"], OutboxCheckpoint.of_json(record).witness, self.mirror.witness
        if self.mirror.kept_in != "kafka" and number <= self.mirror.number:
            return  # the record is not valid: after it, the subscription was delivered without transactions
        if self.mirror.position is None or record["generation"] != self.mirror.generation or theirs <= ours:
            return  # a row that was created again is detected by its list of leaders
        raise ServerRegressed(
            f"the server was put back to an earlier time than {self.place}: it may lack records that were harvested",
            evidence=f"the subscription's row was written {theirs} times before checkpoint number {number} went to "
            f"Kafka; here it was written {ours} times, the last with number {self.mirror.number}",
            next_step=remedy_of(self.subscription, self.source),
        )

    def _behind(self, theirs: OutboxCheckpoint | None) -> CheckpointError:
        """Return the error to raise if the checkpoint in Kafka is missing, or older than its mirror. The error names
        the cause: another configured name, a recreated topic, or lost records."""
        mirror = self.mirror
        numbers = f"number {theirs.number if theirs else 'none'}, the mirror's {mirror.number}"
        before, now = mirror.origin.get("kafka", {}), self.written_under
        remedy = (
            "going on could repeat records: anchor the subscription again, from the mirror with "
            f"{begin_anew(self.subscription, mirror)}"
        )
        if moved := [each for each in _SETTINGS if each in before and each in now and before[each] != now[each]]:
            changes = ", ".join(f"{_SETTINGS[each]} was {before[each]!r} and is {now[each]!r}" for each in moved)
            return CheckpointError(
                f"{self.place} is not the topic that the subscription was delivered under: the configuration names "
                "another",
                evidence=f"{changes}; {numbers}",
                next_step=f"set it back to what it was; if it was changed on purpose, {remedy}",
            )
        ids = before.get("topic_id"), now.get("topic_id")
        cause, evidence = "the topic was recreated, or lost records", numbers
        if all(ids):
            evidence = f"{numbers}; the topic's id was {ids[0]} and is {ids[1]}"
            cause = "the topic lost records" if ids[0] == ids[1] else "the topic was deleted and recreated"
        elif ids[0] and theirs is None:
            evidence = f"{numbers}; the topic's id was {ids[0]}"
            cause = "the topic was deleted"
        return CheckpointError(
            f"{self.place} is behind its mirror in Postgres: {cause}", evidence=evidence, next_step=remedy
        )

    def check_outbox(self, record: Mapping[str, Any]) -> None:
        """Raise CheckpointError if a checkpoint does not belong to this outbox: see `owns`."""
        if not self.owns(record):
            raise CheckpointError(
                f"{self.place} belongs to another outbox: two configurations share a name",
                evidence=f"it is of {_spelled(record.get('outbox'), record.get('identity'))}, this is "
                f"{_spelled(self.outbox, self.identity)}",
                next_step="give either of them another `leaderGroupID` or `subscription`, and a `checkpointTopic` of "
                "its own if it names a topic; if the other outbox is gone permanently, delete the topic",
            )


def _timeline(origin: Mapping[str, Any], position: Mapping[str, Any] | None) -> str | None:
    found = origin.get("timeline") or ((position or {}).get("server") or {}).get("timeline")
    return None if found is None else str(found)


def _check_position(position: Mapping[str, Any] | None, source: str) -> None:
    """Raise KeyError, ValueError, TypeError or AttributeError if the source cannot continue from a position."""
    if position is None or not source:
        return
    if position.get("source") != source:
        raise ValueError(f"source {position.get('source')!r}")
    match source:
        case "snapshot":
            Snapshot.parse(position["prev"])
            if "cur" in position:
                Snapshot.parse(position["cur"])
                int(position["after"])
        case "transaction_id":
            int(position["transaction_id"]), int(position["id"])
        case _:
            decode_ids(position["ids"])
    for each in (*position.get("deferred", ()), *position.get("retried", ())):
        int(each)
    if place := position.get("server"):
        lsn_number(place["lsn"])
        int(place["timeline"], 16), str(place["system"])


def _spelled(name: object, identity: object) -> str:
    return f"{name} ({identity})" if identity else str(name)
