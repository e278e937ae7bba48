"""`harvest init`: create the outbox table and its companion tables, or print their DDL."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harvest_lib.cli.options import DEFAULT_SEGMENT_SIZE, ColumnType, ConfigFile, TableName, configuration, open_outbox
from harvest_lib.cli.usage import Misuse, require_table
from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError

if TYPE_CHECKING:
    import psycopg

    from harvest_lib.config import ColumnMapping
    from harvest_lib.outbox import NativeTable, OutboxTable
    from harvest_lib.outbox.parking import ParkedRecords

    Connection = psycopg.Connection[Any]


def init(
    config: ConfigFile = None,
    table: TableName = None,
    native: Annotated[
        bool, typer.Option("--native", help="The native layout. Default: the existing table's, else native.")
    ] = False,
    goharvest: Annotated[bool, typer.Option("--goharvest", help="The layout that goharvest creates.")] = False,
    value_type: Annotated[
        ColumnType,
        typer.Option(
            metavar="varchar|text|bytea", help="Type of kafka_value in a native table; varchar holds 10,000 characters."
        ),
    ] = "varchar",
    segment_size: Annotated[int, typer.Option(min=1, metavar="N", help="Ids in a segment of a native table.")] = (
        DEFAULT_SEGMENT_SIZE
    ),
    checks: Annotated[
        bool | None,
        typer.Option(
            "--checks/--no-checks",
            help="Add CHECK constraints: they reject records that Kafka always rejects. Default: native tables only.",
            show_default=False,
        ),
    ] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the SQL for your own migrations and change nothing.")
    ] = False,
    dagster: Annotated[
        bool, typer.Option("--dagster", help="Also create the tables of Dagster's runs and audits.")
    ] = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also create the schema and the ledgers of writers by Spark.")
    ] = False,
    spark_table: Annotated[
        list[str] | None,
        typer.Option("--spark-table", metavar="TABLE", help="A business table that Spark fills; may be repeated."),
    ] = None,
) -> None:
    """Create the outbox table and its companion tables if they do not exist.

    Existing tables are not changed, except that a native table gets missing
    constraints and a missing trigger. They do not apply to existing rows, and
    writers wait for milliseconds.

    The native layout works with every source. The goharvest layout is the layout
    that goharvest creates. The companion tables hold parked records and, for a
    native outbox, subscriptions and segments.

    Examples:

      harvest init -f harvest.yaml

      HARVEST_DSN="host=db user=app dbname=shop" harvest init --table billing.outbox --value-type bytea

      harvest init --goharvest -f reaper.yaml

      harvest init -f harvest.yaml --dagster

      harvest init -f harvest.yaml --spark --spark-table orders

      harvest init --print > migrations/0001_outbox.sql
    """
    from harvest_lib.audit.result_queries import CREATE_TABLES
    from harvest_lib.audit.results import prepare
    from harvest_lib.outbox import NativeTable, OutboxTable
    from harvest_lib.outbox.daemons import create_daemons, create_daemons_statement, daemons_table
    from harvest_lib.outbox.spark_tables import create_spark_tables, spark_statements

    if native and goharvest:
        raise Misuse("--native and --goharvest exclude each other", next_step="give one of them, or none")
    for option, each in (("--table", table), *(("--spark-table", each) for each in spark_table or ())):
        require_table(each, option)
    layout = None if not (native or goharvest) else native
    business = list(map(OutboxTable.parse, spark_table or ()))
    define = partial(NativeTable, value_type=value_type, segment_size=segment_size, has_checks=checks is not False)
    if print_:
        harvest = None if config is None and table is not None else configuration(config).harvest
        outbox = OutboxTable.parse(table or (harvest.outbox_table if harvest is not None else ""))
        is_mapped = harvest is not None and harvest.columns is not None
        _print_statements(define(outbox=outbox), native=layout, has_checks=bool(checks), is_mapped=is_mapped)
        if dagster:
            typer.echo(f"{create_daemons_statement(outbox).as_string(None)};\n")
            typer.echo(CREATE_TABLES.strip())
        if spark or business:
            for statement in spark_statements([outbox, *business]):
                typer.echo(f"{statement.as_string(None)};\n")
        return
    with open_outbox(config, table) as (configured, outbox, connection):
        if dagster:
            with _creating(connection, outbox), _said_created(connection, [daemons_table(outbox)]):
                create_daemons(connection, outbox)
            prepare(connection)
        if spark or business:
            filled = [outbox, *business]
            with _creating(connection, outbox), _said_created(connection, [each.batches for each in filled]):
                create_spark_tables(connection, filled)
        if configured.columns is not None:
            _create_beside_mapped(connection, outbox, configured.columns)
            return
        existed = outbox.exists(connection)
        with _creating(connection, outbox):
            _create_tables(connection, define(outbox=outbox), native=layout)
            if checks or (checks is None and outbox.kind(connection) == "native"):
                _add_missing_checks(connection, outbox)
            if outbox.kind(connection) == "native":
                _add_stamp(connection, outbox, tell=existed)


def _print_statements(definition: "NativeTable", *, native: bool | None, has_checks: bool, is_mapped: bool) -> None:
    from harvest_lib.outbox.checks import check_statements
    from harvest_lib.outbox.native_table import beside_statements
    from harvest_lib.outbox.parking import ParkedRecords
    from harvest_lib.outbox.stamping import stamp_statements

    outbox = definition.outbox
    if is_mapped:
        statements = [*beside_statements(outbox)]
    elif native is False:
        statements = [outbox.create_statement(), *(check_statements(outbox) if has_checks else [])]
    else:
        statements = [*definition.create_statements(), *stamp_statements(outbox)]
    if not is_mapped:
        statements.append(ParkedRecords(outbox).create_statement())
    for statement in statements:
        typer.echo(f"{statement.as_string(None)};\n")


def _create_beside_mapped(connection: "Connection", outbox: "OutboxTable", columns: "ColumnMapping") -> None:
    """Check a table with mapped columns, and create its companion tables. Raises OutboxTableError if the table does not
    exist."""
    from harvest_lib.outbox import check_column_mapping, create_beside

    if not outbox.exists(connection):
        outbox.refuse_hidden(connection)
        raise OutboxTableError(
            f"there is no table {outbox} in this database",
            evidence="`columns` maps a table of another layout, which the harvester cannot create",
            next_step="create it, then run this again; or leave `columns` out for a native table",
        )
    check_column_mapping(connection, outbox, columns)
    with _said_created(connection, [outbox, outbox.subscriptions, outbox.parked_ids]):
        create_beside(connection, outbox)


@contextmanager
def _creating(connection: "Connection", outbox: "OutboxTable") -> Iterator[None]:
    """Run a block that creates the tables. If rights are missing, raise DatabaseAccessDenied with the missing GRANT."""
    from psycopg import sql

    from harvest_lib.postgres.translation import translated

    try:
        with translated():
            yield
    except DatabaseAccessDenied as error:
        schema = sql.Identifier(outbox.parts[0] if len(outbox.parts) > 1 else "public").as_string(None)
        role = sql.Identifier(connection.info.user).as_string(None)
        raise DatabaseAccessDenied(
            f"the user {connection.info.user!r} may not create {outbox} and the tables beside it",
            evidence=error.evidence,
            next_step=f"run this as the owner of the schema (HARVEST_DSN names another user), or let it create tables: "
            f"GRANT CREATE ON SCHEMA {schema} TO {role}",
        ) from error


def _create_tables(connection: "Connection", definition: "NativeTable", *, native: bool | None) -> None:
    """Create the tables that are missing. Print for each table whether it was created or existed before."""
    from harvest_lib.outbox.parking import ParkedRecords

    outbox, parked = definition.outbox, ParkedRecords(definition.outbox)
    tables = [outbox, outbox.parked]  # before anything is created, because a name that is too long raises an error
    tables += [] if native is False else [outbox.subscriptions, outbox.parked_ids, outbox.segments]
    with _said_created(connection, tables):
        _create(connection, definition, parked, native=native)


def _create(
    connection: "Connection", definition: "NativeTable", parked: "ParkedRecords", *, native: bool | None
) -> None:
    from harvest_lib.outbox import create_beside

    outbox = definition.outbox
    if native is False:
        outbox.create(connection)
    else:
        definition.create(connection)
    kind = outbox.kind(connection)
    if native is not None and native is not (kind == "native"):
        raise OutboxTableError(
            f"the table {outbox} exists with the other layout",
            evidence=f"it has the {kind} layout",
            next_step="`harvest migrate` converts it to the native layout while it is in use"
            if native
            else "name another table with --table, or leave out --goharvest: the native layout works with every source",
        )
    parked.create(connection)
    if kind == "native":
        create_beside(connection, outbox)
    outbox.check(connection)
    parked.check(connection)


@contextmanager
def _said_created(connection: "Connection", tables: "Sequence[OutboxTable]") -> Iterator[None]:
    """Run a block. Then print for each existing table whether the block created the table. Tables that do not exist are
    not printed, because an outbox in goharvest's layout has fewer companion tables."""
    before = [table.exists(connection) for table in tables]
    yield
    for table, was_there in zip(tables, before, strict=True):
        if table.exists(connection):
            typer.echo(f"{'already exists and is valid' if was_there else 'created'}: {table}")


def _add_missing_checks(connection: "Connection", outbox: "OutboxTable") -> None:
    from harvest_lib.outbox import add_checks

    added = add_checks(connection, outbox)
    if added is None:
        typer.echo(
            f"constraints are missing; only the owner of {outbox} can add them by running this command", err=True
        )
    for name in added or ():
        typer.echo(f"added, for new records: CHECK {name} of {outbox}")


def _add_stamp(connection: "Connection", outbox: "OutboxTable", *, tell: bool) -> None:
    from harvest_lib.outbox.stamping import TRIGGER, add_stamp

    added = add_stamp(connection, outbox)
    if added is None:
        typer.echo(f"a trigger is missing; only the owner of {outbox} can add it by running this command", err=True)
    elif added and tell:
        typer.echo(f"added: the trigger {TRIGGER} of {outbox}, which gives rows their transaction id")
