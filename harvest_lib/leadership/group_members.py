"""Self-descriptions of the members of a pool's consumer group. Any process that may describe the group can read them.

A member to which a shard's partition is assigned commits its offset in the leader topic. The metadata of the committed
offset describe the member: its member id, its pool, and the trouble that keeps it from leading, if any. A description
is current as long as the group has a member with this member id.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from harvest_lib.clock import Deadline
from harvest_lib.kafka_client import answer_of, client_settings
from harvest_lib.leadership.pool import Pool

_ANSWER_SECONDS = 5.0
_AGAIN_SECONDS = 0.2
_LONGEST_TROUBLE = 800
"""Limit of a published trouble, in characters."""
_MOST_METADATA = 4_000
"""Limit of the metadata, in bytes. Kafka refuses a commit with more than 4,096 (`offset.metadata.max.bytes`)."""

_PASSES = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
}
"""Errors that pass: a broker has just started, or the group's coordinator is being chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of the group. `owned` lists the partitions that the member owns, each as topic and number."""

    member_id: str
    client_id: str
    host: str
    owned: Sequence[tuple[str, int]]
    pool: Pool | None = None
    """The pool that the member published; None if the pool is unknown, or if the member owns no partition."""
    trouble: str = ""
    """The trouble that keeps the member from leading; empty if no trouble is known."""


def spoken(pool: Pool, member_id: str, trouble: str = "") -> str:
    """Return the metadata with which a member describes itself. The text of the trouble is cut so that it fits."""
    said = {"member": member_id, "pool": pool.as_json()}
    whole = {**said, "trouble": trouble[:_LONGEST_TROUBLE]} if trouble else said
    short = {**said, "trouble": trouble[: _LONGEST_TROUBLE // 8]} if trouble else said
    spelled = (json.dumps(each, separators=(",", ":")) for each in (whole, short, said))  # ASCII: a byte a character
    return next((each for each in spelled if len(each) <= _MOST_METADATA), "")


def members(
    settings: Mapping[str, object], group: str, *, timeout_seconds: float = _ANSWER_SECONDS
) -> list[GroupMember]:
    """Return the members of a group; an empty list if there is no such group. After an error that passes, query again
    until the timeout. Raises KafkaException."""
    with AdminClient(client_settings(settings)) as admin:
        deadline = Deadline(timeout_seconds)
        while True:
            try:
                return _members(admin, group, max(0.5, deadline.remaining_seconds))
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.GROUP_ID_NOT_FOUND:
                    return []
                if code not in _PASSES or deadline.passed:
                    raise
            admin.poll(_AGAIN_SECONDS)


def _members(admin: AdminClient, group: str, timeout_seconds: float) -> list[GroupMember]:
    found = admin.describe_consumer_groups([group], request_timeout=timeout_seconds)[group].result()
    said = _said(admin, group, timeout_seconds) if found.members else {}
    made = []
    for member in found.members:
        words = said.get(member.member_id, {})
        trouble = words.get("trouble")
        made.append(
            GroupMember(
                member_id=member.member_id,
                client_id=member.client_id,
                host=member.host.lstrip("/"),
                owned=[(each.topic, each.partition) for each in member.assignment.topic_partitions],
                pool=Pool.of_json(words.get("pool")),
                trouble=trouble[:_LONGEST_TROUBLE] if isinstance(trouble, str) else "",
            )
        )
    return made


def _said(admin: AdminClient, group: str, timeout_seconds: float) -> dict[str, dict[str, Any]]:
    """Return the metadata of the last commits: a dictionary from member id to metadata. It is empty if this role may
    not see the commits."""
    try:
        asked = admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=timeout_seconds
        )
        partitions = answer_of(asked[group], 2 * timeout_seconds).topic_partitions
    except KafkaException:
        return {}
    said = {}
    for partition in partitions:
        try:
            words = json.loads(partition.metadata or "")
            said[str(words["member"])] = dict(words)
        except (ValueError, TypeError, KeyError):
            continue  # a commit of goharvest
    return said
