"""`harvest grants postgres | kafka`: scripts that grant the least privileges."""

from typing import TYPE_CHECKING, Annotated

import typer

from harvest_lib.cli.options import ConfigFile, Source, TableName, configuration, names_of
from harvest_lib.cli.parsing import group
from harvest_lib.cli.terminal import json_text, printable
from harvest_lib.cli.usage import Misuse, require_subscription, require_table, require_topics
from harvest_lib.errors import DatabaseError, OutboxTableError
from harvest_lib.record import is_legal_topic

if TYPE_CHECKING:
    from harvest_lib.config import HarvestConfig
    from harvest_lib.config.choices import ReadingMode
    from harvest_lib.grants.kafka import Acl
    from harvest_lib.outbox import OutboxTable

app = group("grants", "Least privilege: print the grants that each role needs in Postgres and Kafka.")
JsonList = Annotated[bool, typer.Option("--json", help="Print a JSON list instead of commands.")]


@app.command()
def postgres(
    config: ConfigFile = None,
    table: TableName = None,
    source: Annotated[
        Source | None,
        typer.Option(
            metavar="mark|snapshot|transaction_id", help="Default: the configuration's. With auto, the table decides."
        ),
    ] = None,
    subscription: Annotated[
        list[str] | None,
        typer.Option(
            "--subscription",
            metavar="NAME",
            help="Subscriptions that the harvester may lead, with commas between them; may be repeated. Default: any.",
        ),
    ] = None,
    harvester: Annotated[
        str, typer.Option(metavar="ROLE", help="Role of the harvester; empty for none.")
    ] = "harvester",
    reader: Annotated[
        str, typer.Option(metavar="ROLE", help="Role for `status` and `audit`; empty for none.")
    ] = "reader",
    operator: Annotated[
        str,
        typer.Option(
            metavar="ROLE", help="Role for `park` and `subscriptions`, which reads as the reader does. Default: none."
        ),
    ] = "",
    writer: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="Role of a writer; may be repeated. Default: writer.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=TOPIC", help="Restrict a writer to the topics that are allowed to it; may be repeated."
        ),
    ] = None,
    dagster: Annotated[bool, typer.Option("--dagster", help="The harvester runs, and audits, in Dagster.")] = False,
    spark_writer: Annotated[
        list[str] | None,
        typer.Option("--spark-writer", metavar="ROLE", help="Role of a writer by Spark; may be repeated."),
    ] = None,
    spark_table: Annotated[
        list[str] | None,
        typer.Option(
            "--spark-table", metavar="TABLE", help="A business table that the writers by Spark fill; may be repeated."
        ),
    ] = None,
) -> None:
    """Print SQL that gives each role exactly the privileges it needs on the outbox. Changes nothing itself.

    Run the output as the owner of the tables. Name all writers in the same call.
    The owner of the tables loses no privileges. The SQL skips a role that does not
    exist, with a warning.

    Examples:

      harvest grants postgres -f harvest.yaml | psql -U owner shop

      harvest grants postgres -f harvest.yaml --writer shop --writer billing --allow shop=orders --allow shop=carts

      harvest grants postgres --table billing.outbox --source snapshot --subscription search

      harvest grants postgres -f harvest.yaml --dagster | psql -U owner shop

      harvest grants postgres -f harvest.yaml --spark-writer nightly --spark-table orders | psql -U owner shop
    """
    from harvest_lib.grants import Grants
    from harvest_lib.grants.dagster import dagster_script
    from harvest_lib.grants.spark import spark_script
    from harvest_lib.harvester.assembly.choices import reads_table
    from harvest_lib.outbox import OutboxTable
    from harvest_lib.postgres.database import connect

    require_table(table, "--table")
    for each in spark_table or ():
        require_table(each, "--spark-table")
    subscriptions = names_of(subscription)
    for each in subscriptions:
        require_subscription(each)
    writers = [*(writer or ([] if spark_writer else ["writer"])), *(spark_writer or [])]
    topics_of_writers = _writer_topics(writers, allow or [], harvester, reader, operator)
    harvest = configuration(config).harvest
    if source is not None:
        harvest = harvest.model_copy(update={"source": source})
    outbox = OutboxTable.parse(table or harvest.outbox_table)
    grants = Grants(
        outbox=outbox,
        mode=reading_mode(harvest, outbox),
        harvester=harvester,
        reader=reader,
        operator=operator,
        writers=topics_of_writers,
        subscriptions=subscriptions,
        has_column_mapping=harvest.columns is not None,
    )
    if reads_table(harvest):  # if not, the database is not needed
        with connect(harvest.data_source.conninfo()) as connection:
            for role in grants.missing(connection):
                typer.echo(
                    f"the role {printable(repr(role))} does not exist: CREATE ROLE it before you run this", err=True
                )
    typer.echo(grants.script(), nl=False)
    if dagster and harvester:
        typer.echo(dagster_script(outbox, harvester), nl=False)
    for role in spark_writer or ():
        typer.echo(spark_script(outbox, role, list(map(OutboxTable.parse, spark_table or ()))), nl=False)


@app.command()
def kafka(
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            help="Topics of the outbox, or prefixes and *, with commas between them; may be repeated.",
        ),
    ],
    config: ConfigFile = None,
    harvester: Annotated[
        str, typer.Option(metavar="PRINCIPAL", help="Principal of the harvester; empty for none.")
    ] = "User:harvester",
    reader: Annotated[
        str, typer.Option(metavar="PRINCIPAL", help="Principal for `status` and `audit`; empty for none.")
    ] = "User:reader",
    create: Annotated[
        bool, typer.Option(help="Allow the harvester to create its topics for election and checkpoints.")
    ] = True,
    as_json: JsonList = False,
) -> None:
    """Print the ACLs that harvester and reader need, as commands of kafka-acls.sh or as JSON. Changes nothing itself.

    With `source: auto`, the table decides the delivery and the election of the ACLs.

    Examples:

      harvest grants kafka -f harvest.yaml --topic orders --topic 'invoices.*'

      harvest grants kafka -f harvest.yaml --topic orders --no-create --json
    """
    from harvest_lib.grants.kafka import harvester_acls, reader_acls

    topics = names_of(topic)
    require_topics(topics, "--topic", prefixes=True)
    who, whose = (principal_name(each) if each else "" for each in (harvester, reader))
    configured = configuration(config, elects=True).harvest
    harvest, reads_group = elected(configured), configured.leadership == "auto"
    acls = harvester_acls(harvest, who, topics, creates=create, reads_group=reads_group) if who else []
    acls += reader_acls(harvest, whose, topics) if whose else []
    show_acls(acls, harvest, as_json=as_json)


def reading_mode(harvest: "HarvestConfig", outbox: "OutboxTable") -> "ReadingMode":
    """Return the reading mode of a configuration. If `source` is `auto`, the table may have to be read."""
    from harvest_lib.harvester.assembly.choices import chosen, read_choices, reads_table
    from harvest_lib.postgres.database import connect

    if not reads_table(harvest):
        return harvest.mode
    with connect(harvest.data_source.conninfo()) as connection:
        return chosen(harvest, read_choices(harvest, connection, outbox)).mode


def elected(harvest: "HarvestConfig") -> "HarvestConfig":
    """Return the configuration with `auto` replaced by the chosen values. The table is read only if the choice depends
    on it. Raises DatabaseError and OutboxTableError."""
    from harvest_lib.harvester.assembly import choices
    from harvest_lib.outbox import OutboxTable
    from harvest_lib.postgres.database import connect

    outbox = OutboxTable.parse(harvest.outbox_table)
    if "auto" not in (harvest.delivery, harvest.leadership):
        return harvest
    if not choices.reads_table(harvest):
        return choices.resolved(harvest, choices.choices_of(harvest), outbox)
    try:
        with connect(harvest.data_source.conninfo()) as connection:
            return choices.resolved(harvest, choices.read_choices(harvest, connection, outbox), outbox)
    except (DatabaseError, OutboxTableError) as error:
        next_step = f"{error.next_step}; or name `source` in the configuration: then the table is not asked"
        raise type(error)(error.cause, evidence=error.evidence, next_step=next_step) from error


def _writer_topics(names: list[str], allowed: list[str], *others: str) -> dict[str, list[str] | None]:
    """Return the allowed topics of each writer, None for all topics. Raises Misuse if a role is named twice, for
    example as writer and reader, because the script would revoke the writer's grants before it grants the reader's."""
    writers: dict[str, list[str] | None] = dict.fromkeys(names)
    for each in allowed:
        name, _, topic = each.rpartition("=")  # a topic's name has no `=`
        if name not in writers or not is_legal_topic(topic):
            raise Misuse(
                f"--allow {each!r} is not ROLE=TOPIC" if not name else f"--allow {each!r} names no writer and topic",
                evidence=f"writers: {', '.join(names)}",
                next_step="write the role as in --writer, `=`, and a topic of a-z, A-Z, 0-9, `.`, `_` and `-`",
            )
        writers[name] = [*(writers[name] or []), topic]
    for name in writers:
        require_name(name, "--writer")
    roles = [*writers, *filter(None, others)]
    for name in roles:
        if roles.count(name) > 1:
            raise Misuse(
                f"the role {name!r} is used for two parts",
                evidence="--writer, --harvester, --reader, --operator",
                next_step="use a separate role for each part; a login can be a member of both",
            )
    return writers


def require_name(name: str, option: str) -> None:
    """Raise Misuse for an empty name."""
    if not name.strip():
        raise Misuse(f"{option}: the name is empty", next_step="write a name, or leave the option out")


def show_acls(acls: "list[Acl]", harvest: "HarvestConfig", *, as_json: bool) -> None:
    """Print ACLs as commands of kafka-acls.sh, or as JSON."""
    from harvest_lib.grants.kafka import commands

    if as_json:
        typer.echo(json_text([acl.as_json() for acl in acls], indent=2))
        return
    for line in commands(acls, servers=str(harvest.base_kafka_config["bootstrap.servers"])):
        typer.echo(line)


def principal_name(name: str) -> str:
    """Return a principal with its type. Raises Misuse for an empty name."""
    require_name(name.partition(":")[2] if ":" in name else name, "--principal, --harvester, --reader")
    return name if ":" in name else f"User:{name}"
