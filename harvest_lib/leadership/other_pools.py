"""Pools that stand in one election by mistake: whichever leads, nobody harvests the outbox of the other.

A newcomer asks the group's members who they are before it joins, and one that has to wait asks again every few seconds.
If a member of another pool owns a partition, the newcomer does not stand; through the leader topic it tells the other.
"""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress

from confluent_kafka import KafkaException

from harvest_lib.errors import PoolConflict
from harvest_lib.kafka_client import KafkaProducerProvider, client_settings
from harvest_lib.leadership.group_members import members
from harvest_lib.leadership.pool import Pool, log_fields, one_group

_log = logging.getLogger(__name__)

_SENT_SECONDS = 2.0
_WORD = "another_pool"


def other_pool(settings: Mapping[str, object], ours: Pool) -> Pool | None:
    """Return the pool of a member that owns a partition and is not of ours; None if there is none, or nobody says."""
    try:
        found = members(settings, ours.group)
    except KafkaException as error:
        _log.debug("group_unknown", extra={"reason": error.args[0].str()})
        return None
    pools = [each.pool for each in found if each.pool is not None and each.owned]
    return next((pool for pool in pools if is_other(ours, pool)), None)


def is_other(ours: Pool, theirs: Pool) -> bool:
    """Return True if two processes of one group are not of one pool."""
    return not ours.is_one_outbox(theirs) or ours.leader_topic != theirs.leader_topic


def tell(settings: Mapping[str, object], ours: Pool, theirs: Pool, provider: KafkaProducerProvider) -> PoolConflict:
    """Let the other pool know of ours, as far as we may, and return the error."""
    own = {"message.timeout.ms": int(_SENT_SECONDS * 1000), "allow.auto.create.topics": False, "linger.ms": 0}
    with suppress(KafkaException, BufferError):
        producer = provider(client_settings(settings, **own))
        producer.produce(theirs.leader_topic, json.dumps({_WORD: ours.as_json()}), partition=0)
        producer.flush(_SENT_SECONDS)
        producer.close()
    return one_group(ours, theirs)


class Notices:
    """Notices of other pools in the leader topic; each is logged once."""

    def __init__(self) -> None:
        self._heard: set[tuple[str, str, str]] = set()

    def hear(self, ours: Pool, message: bytes | str | None) -> PoolConflict | None:
        """Return the conflict, if a message is from another pool."""
        word = _WORD.encode() if isinstance(message, bytes) else _WORD
        if not message or word not in message:  # type: ignore[operator]
            return None
        try:
            theirs = Pool.of_json(json.loads(message)[_WORD])
        except (ValueError, TypeError, KeyError):
            return None
        if theirs is None or not is_other(ours, theirs):
            return None
        error = one_group(ours, theirs)
        known = (theirs.database, theirs.table, theirs.leader_topic)
        if known not in self._heard:
            self._heard.add(known)
            _log.error("pool_conflict", extra=log_fields(error))
        return error
