"""`harvest topics create`: create topics in Kafka, without Kafka's own scripts."""

from typing import Annotated

import typer

from harvest_lib.cli.options import ConfigFile, names_of
from harvest_lib.cli.parsing import group
from harvest_lib.cli.usage import Misuse

app = group("topics", "Create topics in Kafka.")


@app.command()
def create(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names, with spaces or commas between them.")],
    *,
    config: ConfigFile = None,
    partitions: Annotated[
        int, typer.Option(min=1, metavar="N", help="Partitions of each topic. A key's records are in one of them.")
    ] = 6,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Copies of each record. Default: the brokers' own.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the topics; may be repeated.")
    ] = None,
) -> None:
    """Create topics. A topic that exists is not changed.

    Examples:

      harvest topics create orders

      harvest topics create orders payments --partitions 12 --replication-factor 3 -f harvest.yaml

      harvest topics create orders --set retention.ms=604800000
    """
    given = dict(_setting(each) for each in settings or ())
    topics = names_of(names)
    if not all(topics):
        raise Misuse("no topic is named", next_step="write: harvest topics create TOPIC")

    from harvest_lib.cli.options import configuration
    from harvest_lib.kafka_topics import create_topic

    harvest = configuration(config).harvest
    for topic in topics:
        created = create_topic(
            harvest.kafka_settings(for_producer=False),
            topic,
            partitions=partitions,
            copies=replication_factor,
            config=given,
        )
        typer.echo(f"{'created' if created else 'already exists'}: topic {topic}")


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise Misuse(f"--set {text!r} is not NAME=VALUE", next_step="write it like --set retention.ms=604800000")
    return name, value
