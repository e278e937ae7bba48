"""`harvest partition`: shows the partition of each key, and whether adding partitions moved the key."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from harvest_lib.cli.options import ConfigFile, Json, configuration, open_outbox
from harvest_lib.cli.terminal import json_text, printable
from harvest_lib.cli.usage import require_topics


def partition(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    keys: Annotated[list[str], typer.Argument(metavar="KEY")],
    config: ConfigFile = None,
    before: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Former number of partitions. Default: the number that a harvester has seen."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the partition of each key, and whether adding partitions changed it.

    Examples:

      harvest partition orders customer-17 customer-18 -f harvest.yaml

      harvest partition orders customer-17 --before 6 -f harvest.yaml
    """
    require_topics([topic], "TOPIC")
    for place in _places(config, topic, keys, before):
        typer.echo(json_text(place) if as_json else _place_text(place))


def _places(config: Path | None, topic: str, keys: list[str], before: int | None) -> Iterator[dict[str, Any]]:
    """Yield the current and the former partition of each key. The former number of partitions is `before`, or without
    `before` the number that a harvester has stored in Postgres. If no number is known, the former partition is None."""
    from harvest_lib.delivery.partitioners import DEFAULT, partition_of
    from harvest_lib.kafka_client import topic_partitions
    from harvest_lib.kafka_topics import topic_missing

    settings = configuration(config).harvest.kafka_settings(for_producer=True)
    partitions = topic_partitions(settings).get(topic)
    if partitions is None:
        raise topic_missing(topic, partitions=1)
    partitioner, earlier = str(settings.get("partitioner", DEFAULT)), before or _noticed(config, topic)
    for key in keys:
        yield {
            "key": key,
            "partition": partition_of(os.fsencode(key), partitions, partitioner),
            "partitions": partitions,
            "partition_before": None if earlier is None else partition_of(os.fsencode(key), earlier, partitioner),
            "partitions_before": earlier,
        }


def _noticed(config: Path | None, topic: str) -> int | None:
    from harvest_lib.harvester.housekeeping.added_partitions import read_added

    with open_outbox(config) as (harvest, outbox, connection):
        added = read_added(connection, outbox.placed(connection), harvest.subscription)
    return next((each.before for each in added if each.topic == topic), None)


def _place_text(place: dict[str, Any]) -> str:
    said = f"{printable(place['key'])}: partition {place['partition']} of {place['partitions']}"
    if place["partitions_before"] is None:
        return said
    moved = "moved" if place["partition"] != place["partition_before"] else "did not move"
    return f"{said}, {place['partition_before']} of {place['partitions_before']} before: {moved}"
