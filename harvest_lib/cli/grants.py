"""`harvest grants postgres | kafka | consumer`: scripts that grant each role the least privileges."""

import json
from typing import Annotated

import typer

from harvest_lib.cli.grants_consumer import app as consumer
from harvest_lib.cli.options import ConfigFile, Source, configuration
from harvest_lib.cli.parsing import Group
from harvest_lib.cli.terminal import printable
from harvest_lib.errors import ConfigError
from harvest_lib.record import is_legal_topic

app = typer.Typer(
    name="grants",
    cls=Group,
    help="Least privilege: print the grants that each role needs in Postgres and Kafka.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(consumer)


@app.command()
def postgres(
    config: ConfigFile = None,
    table: Annotated[str | None, typer.Option(help="Name of the table. Default: the configuration's.")] = None,
    source: Annotated[
        Source | None, typer.Option(help="Default: the configuration's. With auto, the table decides.")
    ] = None,
    subscriptions: Annotated[
        list[str] | None,
        typer.Option(
            "--subscriptions", help="A subscription that the harvester may lead; may be repeated. Default: any."
        ),
    ] = None,
    harvester: Annotated[str, typer.Option(help="Role of the harvester; empty for none.")] = "harvester",
    reader: Annotated[str, typer.Option(help="Role for `status` and `audit`; empty for none.")] = "reader",
    writer: Annotated[
        list[str] | None, typer.Option(help="Role of a writer; may be repeated. Default: writer.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=TOPIC", help="Restrict a writer to the topics that are allowed to it; may be repeated."
        ),
    ] = None,
) -> None:
    """Print SQL that gives each role exactly the privileges it needs on the outbox. Changes nothing itself.

    Run the output as the owner of the tables. Name all writers in one call. The
    owner of the tables loses no privileges. The SQL skips a role that does not
    exist, with a warning.

    Examples:

      harvest grants postgres -f harvest.yaml | psql -U owner shop

      harvest grants postgres -f harvest.yaml --writer shop --writer billing --allow shop=orders --allow shop=carts

      harvest grants postgres --table billing.outbox --source snapshot --subscriptions search
    """
    from harvest_lib.cli.actions.grants import allowed_topics, reading_mode, reads_table, separate_roles
    from harvest_lib.database import connect
    from harvest_lib.grants import Grants
    from harvest_lib.outbox import OutboxTable

    harvest = configuration(config).harvest
    outbox = OutboxTable.parse(table or harvest.outbox_table)
    grants = Grants(
        outbox=outbox,
        mode=reading_mode(harvest, outbox, source),
        harvester=harvester,
        reader=reader,
        writers=separate_roles(allowed_topics(writer or ["writer"], allow or []), harvester, reader),
        subscriptions=subscriptions or [],
        parks=harvest.parking != "stop",
        has_column_mapping=harvest.columns is not None,
    )
    if reads_table(harvest, source):  # otherwise the database is not needed
        with connect(harvest.data_source.conninfo()) as connection:
            for role in grants.missing(connection):
                typer.echo(
                    f"the role {printable(repr(role))} does not exist: CREATE ROLE it before you run this", err=True
                )
    typer.echo(grants.script(), nl=False)


@app.command()
def kafka(
    topic: Annotated[
        list[str], typer.Option("--topic", "-t", help="A topic of the outbox, or a prefix and *; may be repeated.")
    ],
    config: ConfigFile = None,
    harvester: Annotated[str, typer.Option(help="Principal of the harvester; empty for none.")] = "User:harvester",
    reader: Annotated[str, typer.Option(help="Principal for `status` and `audit`; empty for none.")] = "User:reader",
    create: Annotated[
        bool, typer.Option(help="Allow the harvester to create its topics for election and checkpoints.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of commands.")] = False,
) -> None:
    """Print the ACLs that harvester and reader need, as commands of kafka-acls.sh or as JSON. Changes nothing itself.

    Examples:

      harvest grants kafka -f harvest.yaml --topic orders --topic 'invoices.*'

      harvest grants kafka -f harvest.yaml --topic orders --no-create --json
    """
    from harvest_lib.cli.actions.grants import principal_name
    from harvest_lib.grants.kafka import commands, harvester_acls, reader_acls

    harvest = configuration(config, elects=True).harvest
    for each in topic:
        if each != "*" and not is_legal_topic(each.removesuffix("*")):
            raise ConfigError(
                "Kafka cannot have a topic of this name",
                field="--topic",
                next_step="name topics by a-z, A-Z, 0-9, `.`, `_` and `-`, with * at the end for a prefix",
            )
    acls = harvester_acls(harvest, principal_name(harvester), topic, creates=create) if harvester else []
    acls += reader_acls(harvest, principal_name(reader), topic) if reader else []
    if as_json:
        typer.echo(json.dumps([acl.as_json() for acl in acls], indent=2))
        return
    for line in commands(acls, servers=str(harvest.base_kafka_config["bootstrap.servers"])):
        typer.echo(line)
