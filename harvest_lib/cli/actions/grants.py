"""Checks and meaning of the options of `harvest grants`, and the output of ACLs."""

import typer

from harvest_lib.cli.options import Source
from harvest_lib.cli.terminal import json_text
from harvest_lib.config import HarvestConfig
from harvest_lib.database import connect
from harvest_lib.errors import ConfigError, DatabaseError, OutboxTableError
from harvest_lib.grants import ReadingMode
from harvest_lib.grants.kafka import Acl, commands
from harvest_lib.harvester import choices
from harvest_lib.outbox import OutboxTable
from harvest_lib.record import is_legal_topic


def reading_mode(harvest: HarvestConfig, outbox: OutboxTable, source: Source | None = None) -> ReadingMode:
    """Return how a configuration reads records. If it leaves that open, the table decides."""
    kind = source or harvest.source
    if reads_table(harvest, source):
        with connect(harvest.data_source.conninfo()) as connection:
            kind = "snapshot" if outbox.kind(connection) == "native" else "mark"
    if kind == "mark":
        return "mark_batches" if harvest.exactly_once else "mark"
    return "batches"


def elected(harvest: HarvestConfig) -> HarvestConfig:
    """Return a configuration with each `auto` resolved. If it leaves that open, the table decides."""
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


def reads_table(harvest: HarvestConfig, source: Source | None) -> bool:
    """Return True if only the table shows how it is read."""
    return (source or harvest.source) == "auto" and harvest.columns is None


def writer_topics(names: list[str], allowed: list[str], *others: str) -> dict[str, list[str] | None]:
    """Return the topics of each writer. Raise ConfigError for a role with two parts: the grants of one would undo the
    other's."""
    writers: dict[str, list[str] | None] = dict.fromkeys(names)
    for each in allowed:
        name, _, topic = each.rpartition("=")  # a topic's name has no `=`
        if name not in writers or not is_legal_topic(topic):
            raise ConfigError(
                "the value of --allow is invalid",
                field="--allow",
                next_step="write ROLE=TOPIC, the role as in --writer, the topic by a-z, A-Z, 0-9, `.`, `_` and `-`",
            )
        writers[name] = [*(writers[name] or []), topic]
    for name in writers:
        check_name(name, "--writer")
    roles = [*writers, *filter(None, others)]
    for name in roles:
        if roles.count(name) > 1:
            raise ConfigError(
                f"the role {name!r} is used for two parts",
                field="--writer, --harvester, --reader",
                next_step="use a separate role for each part; one login can be a member of both",
            )
    return writers


def check_name(name: str, field: str) -> None:
    """Raise ConfigError for the name of nobody."""
    if not name.strip():
        raise ConfigError("the name is empty", field=field, next_step="name the role, or omit the option")


def check_topics(topics: list[str], field: str) -> None:
    for each in topics:
        if each != "*" and not is_legal_topic(each.removesuffix("*")):
            raise ConfigError(
                "Kafka cannot have a topic of this name",
                field=field,
                next_step="name topics by a-z, A-Z, 0-9, `.`, `_` and `-`, with * at the end for a prefix",
            )


def show_acls(acls: list[Acl], harvest: HarvestConfig, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text([acl.as_json() for acl in acls], indent=2))
        return
    for line in commands(acls, servers=str(harvest.base_kafka_config["bootstrap.servers"])):
        typer.echo(line)


def principal_name(name: str) -> str:
    check_name(name.partition(":")[2] if ":" in name else name, "--principal, --harvester, --reader")
    return name if ":" in name else f"User:{name}"
