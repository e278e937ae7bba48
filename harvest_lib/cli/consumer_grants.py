"""`harvest grants consumer postgres | kafka`: scripts that grant the least privileges of a consumer."""

from typing import Annotated

import typer

from harvest_lib.cli.grants import JsonList, principal_name, require_name, show_acls
from harvest_lib.cli.options import ConfigFile, configuration, names_of
from harvest_lib.cli.parsing import group
from harvest_lib.cli.usage import require_table, require_topics

app = group("consumer", "Least privilege for a consumer built with `harvest_lib.consume`.")

_Topics = list[str] | None


@app.command("postgres")
def consumer_postgres(
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

    require_name(role, "--role")
    require_table(table, "--table")
    typer.echo(consumer_grants(role, table, key_values=key_values), nl=False)


@app.command("kafka")
def consumer_kafka(
    name: Annotated[str, typer.Option(help="The consumer's `name`, which is also its group id.")],
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic", "-t", help="Topics that the consumer reads, with commas between them; may be repeated."
        ),
    ],
    publish: Annotated[
        _Topics,
        typer.Option(
            "--publish",
            "-p",
            metavar="TOPIC",
            help="Topics that the consumer publishes to, with commas between them; may be repeated.",
        ),
    ] = None,
    log: Annotated[
        _Topics,
        typer.Option(
            "--log",
            metavar="TOPIC",
            help="The recovery logs of `SqliteStore`s, with commas between them; may be repeated.",
        ),
    ] = None,
    principal: Annotated[str, typer.Option(metavar="PRINCIPAL", help="Principal of the consumer.")] = "User:consumer",
    config: ConfigFile = None,
    as_json: JsonList = False,
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

    read, published, logs = map(names_of, (topic, publish, log))
    require_topics([*read, *published, *logs], "--topic, --publish, --log", prefixes=True)
    require_name(name, "--name")
    who = principal_name(principal)
    harvest = configuration(config).harvest
    pool = [each for each in (harvest.leader_topic, harvest.checkpoint_topic) if each]
    acls = consumer_acls(name, who, read, published=published, logs=logs, pool=pool)
    show_acls(acls, harvest, as_json=as_json)
