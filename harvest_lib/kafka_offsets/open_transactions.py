"""Kafka transactions that are open: readers of committed records wait in front of the first.

The end of a partition for such readers is its last stable offset. A transaction of a lost producer is aborted after its
`transaction.timeout.ms`; a transaction that hangs for other reasons stays until an operator ends it.
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
"""A reader without progress for this long waits."""
_STEP_SECONDS = 0.1
_ANSWER_SECONDS = 10.0
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedPartition:
    """A partition whose committed records end at `since`, where a transaction began; `behind` offsets come after."""

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
        """Return the command that ends it."""
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
    """Return the end of each partition, once all transactions in front of the ends are committed or aborted.

    Transactions that are open now are waited for. Raises TransactionOpen if any stays open, KafkaUnavailable or
    KafkaAccessDenied.
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
    """Logs that a reader of committed records waits in front of a transaction that stays open, once for each."""

    def __init__(self, client: Any) -> None:
        """`client` is the reader's, confluent_kafka's."""
        self._client = client
        self._before: dict[Place, int] = {}
        self._logged: dict[Place, int] = {}
        self._look_at = boot_seconds() + LOOK_SECONDS

    def look(self, positions: Mapping[Place, int]) -> None:
        """Take the next position of each partition, at any rate. Queries no broker."""
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
    """Return the ends of partitions for readers of that isolation."""
    ends: dict[Place, int] = {}
    for place, found in list_offsets(admin, places, LATEST, isolation=isolation, timeout_seconds=seconds).items():
        if isinstance(found, KafkaError):
            raise translate(found, settings=settings)
        ends[place] = found
    return ends
