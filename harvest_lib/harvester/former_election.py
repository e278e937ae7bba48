"""A check for processes of a pool that still elect through Kafka, while another would lead it by the lock in Postgres.

Before `leadership: auto` a pool without the setting elected through Kafka. The two elections do not know of each other,
and a leader that marks has no row that would show it. So a process for which `auto` has chosen the lock first asks
whether the consumer group of the pool has members.
"""

import logging

from confluent_kafka import KafkaException

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import PoolConflict
from harvest_lib.leadership.group_members import Member, members
from harvest_lib.leadership.pool import Pool

_log = logging.getLogger(__name__)

NEXT_STEP = (
    "make sure that no process of this pool elects through Kafka (`leadership: neli`, or goharvest); to have it found "
    "out, grant Describe on the group"
)
"""The next step if Kafka does not say whether the group has members."""


def refuse_group(config: HarvestConfig) -> str:
    """Raise PoolConflict if the consumer group of the pool has members. Where Kafka does not say, that is logged, and
    the reason returned."""
    group = config.leader_group_id
    try:
        found = members(config.kafka_settings(for_producer=False), group)
    except KafkaException as error:
        reason = str(error.args[0].str())
        _log.warning("former_election_unknown", extra={"group": group, "reason": reason, "next_step": NEXT_STEP})
        return reason
    if not found:
        return ""
    named = ", ".join(sorted(f"{each.client_id}@{each.host}" for each in found))
    raise PoolConflict(
        f"processes of this pool elect through Kafka, and this one would lead by the lock in Postgres: {named}",
        evidence=f"the consumer group {group!r} has {len(found)} members; `leadership: auto` chose `postgres` here, "
        "which knows nothing of that election",
        next_step="stop those processes, then start this one; or let it stand in their election, and deliver as they "
        "do: `leadership: neli` and the `delivery` that they have (before `auto` the default was `barrier`)",
        theirs=_pool(config, found).as_json(),
    )


def _pool(config: HarvestConfig, found: list[Member]) -> Pool:
    said = [each.pool for each in found if each.pool is not None]
    first = Pool(leadership="neli", group=config.leader_group_id, process=found[0].client_id)
    return said[0] if said else first
