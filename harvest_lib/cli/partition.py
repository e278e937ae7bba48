"""`harvest partition`: to which partition of a topic keys go, and which of them moved when partitions were added."""

from typing import Annotated

import typer

from harvest_lib.cli import actions
from harvest_lib.cli.options import ConfigFile, Json
from harvest_lib.cli.terminal import json_text


def partition(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    keys: Annotated[list[str], typer.Argument(metavar="KEY...")],
    config: ConfigFile = None,
    before: Annotated[
        int | None,
        typer.Option(min=1, help="How many partitions there were. Default: what a harvester has noticed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say to which partition of a topic keys go, and whether they went to another before partitions were added.

    Examples:

      harvest partition orders customer-17 customer-18 -f harvest.yaml

      harvest partition orders customer-17 --before 6 -f harvest.yaml
    """
    places = actions.partition.places(config, topic, keys, before)
    for each in places:
        typer.echo(json_text(each) if as_json else actions.partition.place_text(each))
