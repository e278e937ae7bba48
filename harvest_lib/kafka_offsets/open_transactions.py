"""Finds open Kafka transactions. Readers of committed records wait in front of the first open transaction.

For such readers a partition ends at its last stable offset. Kafka aborts a transaction of a lost producer after its
`transaction.timeout.ms`; a transaction that hangs for another reason stays open until an operator aborts it.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.errors import TransactionOpen
from harvest_lib.kafka_client import client_settings, translate
from harvest_lib.kafka_offsets import LATEST, Place, list_offsets

_log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
"""Time without progress after which a reader counts as waiting."""
_STEP_SECONDS = 0.1
_ANSWER_SECONDS = 10.0
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedPartition:
    """A partition with an open transaction. The transaction began at the offset `since`, where committed records end.
    `behind` is the number of offsets from `since` to the end of the partition."""

    topic: str
    partition: int
    since: int
    behind: int

    def __str__(self) -> str:
        return (
            f"a transaction is open in partition {self.partition} of {self.topic!r} since offset {self.since}: "
            f"{self.behind} offsets behind it cannot be read as committed yet"
        )

    @property
    def next_step(self) -> str:
        """Return the next step for an operator, with the command that aborts the transaction."""
        return (
            f"wait, or end it: kafka-transactions.sh --bootstrap-server … abort --topic {self.topic} --partition "
            f"{self.partition} --start-offset {self.since}"
        )


def settled_ends(
    settings: Mapping[str, object],
    places: Collection[Place],
    *,
    patience_seconds: float,
    timeout_seconds: float = _ANSWER_SECONDS,
) -> dict[Place, int]:
    """Return the current end of each partition, after all transactions in front of the ends were committed or aborted.

    Waits up to `patience_seconds` for transactions that are open now. Raises TransactionOpen if a transaction is still
    open after that time. Also raises KafkaUnavailable and KafkaAccessDenied.
    """
    if not places:
        return {}
    deadline = Deadline(patience_seconds)
    with AdminClient(client_settings(settings)) as admin:
        ends = _ends(admin, settings, places, IsolationLevel.READ_UNCOMMITTED, timeout_seconds)
        unsettled: Mapping[Place, int] = ends
        while True:
            committed = _ends(admin, settings, unsettled, IsolationLevel.READ_COMMITTED, timeout_seconds)
            found = _behind(unsettled, committed)
            if not found:
                return ends
            if deadline.passed:
                raise _still_open(found)
            unsettled = {(each.topic, each.partition): ends[each.topic, each.partition] for each in found}
            time.sleep(_STEP_SECONDS)


class OpenTransactionWatch:
    """Logs if a reader of committed records waits in front of an open transaction, once for each transaction."""

    def __init__(self, client: Any) -> None:
        """`client` is the reader's consumer, of confluent_kafka."""
        self._client = client
        self._before: dict[Place, int] = {}
        self._logged: dict[Place, int] = {}
        self._look_at = boot_seconds() + LOOK_SECONDS

    def look(self, positions: Mapping[Place, int]) -> None:
        """Compare the reader's next offset of each partition with the offset at the previous comparison. May be called
        at any rate, because a call within 30 seconds of a comparison has no effect. Queries no broker."""
        if boot_seconds() < self._look_at:
            return
        self._look_at = boot_seconds() + LOOK_SECONDS
        for place, position in positions.items():
            if self._before.get(place) != position or self._logged.get(place) == position:
                continue
            known = self._client.get_watermark_offsets(TopicPartition(*place), cached=True)
            if known is not None and known[1] > position:
                self._logged[place] = position
                found = BlockedPartition(topic=place[0], partition=place[1], since=position, behind=known[1] - position)
                _log.warning("transaction_open", extra={"reason": str(found), "next_step": found.next_step})
        self._before = dict(positions)


def _still_open(found: Sequence[BlockedPartition]) -> TransactionOpen:
    more = f"; and {len(found) - _SHOWN} more partitions" if len(found) > _SHOWN else ""
    return TransactionOpen(
        "records behind an open Kafka transaction cannot be judged yet",
        evidence="; ".join(str(each) for each in found[:_SHOWN]) + more,
        next_step=found[0].next_step,
    )


def _behind(ends: Mapping[Place, int], committed: Mapping[Place, int]) -> list[BlockedPartition]:
    return [
        BlockedPartition(topic=topic, partition=partition, since=since, behind=ends[topic, partition] - since)
        for (topic, partition), since in sorted(committed.items())
        if since < ends[topic, partition]
    ]


def _ends(
    admin: AdminClient,
    settings: Mapping[str, object],
    places: Collection[Place],
    isolation: IsolationLevel,
    seconds: float,
) -> dict[Place, int]:
    """Return the ends of partitions for readers with `isolation`. Raises KafkaUnavailable or KafkaAccessDenied."""
    ends: dict[Place, int] = {}
    for place, found in list_offsets(admin, places, LATEST, isolation=isolation, timeout_seconds=seconds).items():
        if isinstance(found, KafkaError):
            raise translate(found, settings=settings)
        ends[place] = found
    return ends
