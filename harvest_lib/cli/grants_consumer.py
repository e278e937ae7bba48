"""`harvest grants consumer postgres | kafka`: the least privileges of a consumer of `harvest_lib.consume`."""

import json
from typing import Annotated

import typer

from harvest_lib.cli.options import ConfigFile, configuration
from harvest_lib.cli.parsing import Group
from harvest_lib.errors import ConfigError
from harvest_lib.record import is_legal_topic

app = typer.Typer(
    name="consumer",
    cls=Group,
    help="Least privilege for a consumer built with `harvest_lib.consume`.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_Topics = list[str] | None


@app.command()
def postgres(
    role: Annotated[str, typer.Option(help="Role of the consumer.")] = "consumer",
    table: Annotated[str, typer.Option(help="The consumer's checkpoint table.")] = "consumers",
    key_values: Annotated[bool, typer.Option(help="The consumer keeps its state in a `KeyValueStore`.")] = False,
) -> None:
    """Print SQL that gives a consumer's role exactly the privileges it needs on its own tables. Changes nothing itself.

    You grant what the application reads and writes besides.

    Examples:

      harvest grants consumer postgres --role order_states | psql -U owner shop

      harvest grants consumer postgres --key-values --table shop.consumers
    """
    from harvest_lib.consume import consumer_grants

    typer.echo(consumer_grants(role, table, key_values=key_values), nl=False)


@app.command()
def kafka(
    name: Annotated[str, typer.Option(help="The consumer's `name`, which is also its group id.")],
    topic: Annotated[
        list[str], typer.Option("--topic", "-t", help="A topic that the consumer reads; may be repeated.")
    ],
    publish: Annotated[
        _Topics, typer.Option("--publish", "-p", help="A topic that the consumer publishes to; may be repeated.")
    ] = None,
    log: Annotated[_Topics, typer.Option("--log", help="The recovery log of a `SqliteStore`; may be repeated.")] = None,
    principal: Annotated[str, typer.Option(help="Principal of the consumer.")] = "User:consumer",
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of commands.")] = False,
) -> None:
    """Print the ACLs that a consumer needs, as commands of kafka-acls.sh or as JSON. Changes nothing itself.

    A topic may be a prefix followed by *. The configuration names the Kafka
    servers and the harvesters' topics for election and checkpoints. If a prefix
    covers these topics, or Kafka's own, writing to them is denied.

    Examples:

      harvest grants consumer kafka --name order-states --topic orders --publish states

      harvest grants consumer kafka --name order-states --topic orders --log order-states-log --json
    """
    from harvest_lib.grants.kafka import commands, consumer_acls

    for each in (*topic, *(publish or ()), *(log or ())):
        if each != "*" and not is_legal_topic(each.removesuffix("*")):
            raise ConfigError(
                "Kafka cannot have a topic of this name",
                field="--topic, --publish, --log",
                next_step="name topics by a-z, A-Z, 0-9, `.`, `_` and `-`, with * at the end for a prefix",
            )
    who = principal if ":" in principal else f"User:{principal}"
    harvest = configuration(config).harvest
    pool = [each for each in (harvest.leader_topic, harvest.checkpoint_topic) if each]
    acls = consumer_acls(name, who, topic, published=publish or (), logs=log or (), pool=pool)
    if as_json:
        typer.echo(json.dumps([acl.as_json() for acl in acls], indent=2))
        return
    for line in commands(acls, servers=str(harvest.base_kafka_config["bootstrap.servers"])):
        typer.echo(line)
