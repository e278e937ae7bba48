"""Detects two pools that stand in the same election by mistake. While one pool leads, the other pool's outbox is not
harvested.  A process queries the identities of the group's members before it joins the group, and every few seconds
while it waits. If a member of another pool owns a partition, the process does not stand for election, and notifies that
member through the leader topic.
"""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress

from confluent_kafka import KafkaException

from harvest_lib.errors import PoolConflict
from harvest_lib.kafka_client import KafkaProducerProvider, client_settings
from harvest_lib.leadership.group_members import members
from harvest_lib.leadership.pool import ConflictLog, Pool, conflict_in_group

_log = logging.getLogger(__name__)

_SENT_SECONDS = 2.0
_WORD = "another_pool"


class OtherPools:
    """Other pools in the consumer group of `pool`."""

    def __init__(self, pool: Pool, client: Mapping[str, object], producer_provider: KafkaProducerProvider) -> None:
        self.pool = pool
        self._client = client
        self._producer_provider = producer_provider
        self._conflicts = ConflictLog()

    def find(self) -> PoolConflict | None:
        """Return the conflict with a member of another pool if that member owns a partition. Return None if there is no
        such member, or if the members are unknown."""
        try:
            found = members(self._client, self.pool.group)
        except KafkaException as error:
            _log.debug("group_unknown", extra={"reason": error.args[0].str()})
            return None
        pools = [each.pool for each in found if each.pool is not None and each.owned]
        conflicts = (conflict_in_group(self.pool, pool) for pool in pools)
        return next((conflict for conflict in conflicts if conflict is not None), None)

    def refuse(self) -> None:
        """If a member of another pool owns a partition, notify that member and raise PoolConflict."""
        if (conflict := self.find()) is not None:
            self.tell(conflict)
            raise conflict

    def tell(self, conflict: PoolConflict) -> None:
        """Notify the other pool through its leader topic, if this role may write to the topic."""
        own = {"message.timeout.ms": int(_SENT_SECONDS * 1000), "allow.auto.create.topics": False, "linger.ms": 0}
        with suppress(KafkaException, BufferError):
            producer = self._producer_provider(client_settings(self._client, **own))
            producer.produce(conflict.theirs["leader_topic"], json.dumps({_WORD: self.pool.as_json()}), partition=0)
            producer.flush(_SENT_SECONDS)
            producer.close()

    def is_first(self, conflict: PoolConflict) -> bool:
        """Return True if this pool stays when both pools own a partition. The result is True in exactly one of the two
        pools; the other pool leaves."""
        return str(self.pool) < str(Pool.of_json(conflict.theirs))

    def hear(self, message: bytes | str | None) -> PoolConflict | None:
        """Return the conflict if a message of the leader topic is a notice of another pool. Return None for any other
        message. Each conflict is logged once."""
        word = _WORD.encode() if isinstance(message, bytes) else _WORD
        if not message or word not in message:  # type: ignore[operator]
            return None
        try:
            theirs = Pool.of_json(json.loads(message)[_WORD])
        except (ValueError, TypeError, KeyError):
            return None
        if theirs is None or theirs.group != self.pool.group:  # other groups may use the topic
            return None
        if (error := conflict_in_group(self.pool, theirs)) is not None:
            self._conflicts.log(error)
        return error
