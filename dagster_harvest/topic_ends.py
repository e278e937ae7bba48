"""The offsets at which topics end, as the metadata of materializations has them.

A materialization has a range of offsets for each partition: from the end in the topic's last materialization to the end
now. The ranges of a topic have no gaps and do not overlap, over restarts and over several runs that fill the topic in
turn. Each record lies in a single range: in the range of the materialization that counts it, or in an earlier range if
the record was in Kafka before its batch was committed. Ranges include records of other producers, and the markers of
transactions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient

from harvest_lib.config import HarvestConfig
from harvest_lib.kafka_client import client_settings, topic_partitions
from harvest_lib.kafka_offsets import LATEST, list_offsets

OFFSETS = "offsets"
"""The key of the ranges in the metadata: for each partition, the first offset of its range and the offset after it."""
_ANSWER_SECONDS = 2.0

Ends = Mapping[str, int]
"""The end of each partition, by the partition's number as text."""


def read_ends(
    config: HarvestConfig,
    topics: Sequence[str],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    *,
    patience_seconds: float | None = None,
) -> Mapping[str, Ends]:
    """Return the ends of topics for readers with `isolation`. A topic or a partition that Kafka does not answer for
    within `patience_seconds`, by default 2, is left out. Raises KafkaError if no broker answers.

    Kafka writes the markers of a transaction some milliseconds after the commit has returned. Until then the records of
    the transaction lie before the uncommitted end alone.
    """
    settings, seconds = config.kafka_settings(for_producer=False), patience_seconds or _ANSWER_SECONDS
    there = topic_partitions(settings, timeout_seconds=seconds)
    places = {(topic, number) for topic in topics for number in range(there.get(topic, 0))}
    found: dict[str, dict[str, int]] = {}
    if not places:
        return {}
    with AdminClient(client_settings(settings)) as admin:
        answers = list_offsets(admin, places, LATEST, isolation=isolation, timeout_seconds=seconds)
    for (topic, number), end in sorted(answers.items()):
        if isinstance(end, int):
            found.setdefault(topic, {})[str(number)] = end
    return found


def ranges(before: Ends, ends: Ends) -> dict[str, list[int]]:
    """Return the range of each partition, which may be empty. A partition without an earlier end, or whose log was made
    anew, begins at 0. A partition without an end now keeps its earlier end."""
    after = {**before, **ends}
    begun = {number: begin if (begin := before.get(number, 0)) <= end else 0 for number, end in after.items()}
    return {number: [begun[number], end] for number, end in sorted(after.items(), key=lambda each: int(each[0]))}


def passed(found: Mapping[str, Sequence[int]]) -> int:
    """Return the number of offsets in ranges."""
    return sum(end - begin for begin, end in found.values())


def ends_of(metadata: Mapping[str, Any]) -> Ends:
    """Return the ends of the ranges in the metadata of a materialization; empty if it has none."""
    value = metadata.get(OFFSETS)
    match value.value if isinstance(value, dg.JsonMetadataValue) else None:
        case dict() as found if all(isinstance(each, list) and len(each) == 2 for each in found.values()):  # noqa: PLR2004
            return {str(number): int(end) for number, (_, end) in found.items()}
    return {}  # a user may materialize a topic with an `offsets` of another form
