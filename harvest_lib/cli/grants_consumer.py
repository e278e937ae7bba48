"""`harvest grants consumer postgres | kafka`: the least privileges of a consumer of `harvest_lib.consume`."""

from typing import Annotated

import typer

from harvest_lib.cli import actions
from harvest_lib.cli.options import ConfigFile, configuration
from harvest_lib.cli.parsing import group

app = group("consumer", "Least privilege for a consumer built with `harvest_lib.consume`.")

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
    from harvest_lib.grants.kafka import consumer_acls

    actions.grants.check_topics([*topic, *(publish or ()), *(log or ())], "--topic, --publish, --log")
    who = actions.grants.principal_name(principal)
    harvest = configuration(config).harvest
    pool = [each for each in (harvest.leader_topic, harvest.checkpoint_topic) if each]
    acls = consumer_acls(name, who, topic, published=publish or (), logs=log or (), pool=pool)
    actions.grants.show_acls(acls, harvest, as_json=as_json)
