"""Partitions of keys, now and before, for `harvest partition`."""

import os
from pathlib import Path
from typing import Any

from harvest_lib.cli.actions.outbox import open_outbox
from harvest_lib.cli.options import configuration
from harvest_lib.cli.terminal import printable
from harvest_lib.delivery.partitioners import DEFAULT, partition_of
from harvest_lib.harvester.added_partitions import read_added
from harvest_lib.kafka_client import topic_missing, topic_partitions


def places(config: Path | None, topic: str, keys: list[str], before: int | None) -> list[dict[str, Any]]:
    """Return the partition of each key, now and before. The earlier number is read from Postgres unless it is given."""
    settings = configuration(config).harvest.kafka_settings(for_producer=True)
    partitions = topic_partitions(settings).get(topic)
    if partitions is None:
        raise topic_missing(topic, partitions=1)
    partitioner, earlier = str(settings.get("partitioner", DEFAULT)), before or _noticed(config, topic)
    return [
        {
            "key": key,
            "partition": partition_of(os.fsencode(key), partitions, partitioner),
            "partitions": partitions,
            "partition_before": None if earlier is None else partition_of(os.fsencode(key), earlier, partitioner),
            "partitions_before": earlier,
        }
        for key in keys
    ]


def place_text(place: dict[str, Any]) -> str:
    said = f"{printable(place['key'])}: partition {place['partition']} of {place['partitions']}"
    if place["partitions_before"] is None:
        return said
    moved = "moved" if place["partition"] != place["partition_before"] else "did not move"
    return f"{said}, {place['partition_before']} of {place['partitions_before']} before: {moved}"


def _noticed(config: Path | None, topic: str) -> int | None:
    with open_outbox(config) as (harvest, outbox, connection):
        added = read_added(connection, outbox.placed(connection), harvest.subscription)
    return next((each.before for each in added if each.topic == topic), None)
