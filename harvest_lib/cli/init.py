"""`harvest init`: create the outbox table and those beside it, or print their DDL."""

from collections.abc import Sequence
from typing import Annotated

import psycopg
import typer
from psycopg import sql

from harvest_lib.cli.options import ConfigFile, configuration
from harvest_lib.config import ColumnMapping, HarvestConfig
from harvest_lib.database import connect
from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox import NativeTable, OutboxTable, ParkedRecords, add_checks, check_mapped
from harvest_lib.outbox.checks import check_statements
from harvest_lib.outbox.native_table import DEFAULT_SEGMENT_SIZE, ColumnType, beside_statements, create_beside


def init(
    config: ConfigFile = None,
    table: Annotated[str | None, typer.Option(help="The table's name; default: the configuration's.")] = None,
    native: Annotated[
        bool | None,
        typer.Option("--native/--goharvest", help="Which layout. Without either: the one that is there, else native."),
    ] = None,
    value_type: Annotated[
        ColumnType, typer.Option(help="Type of kafka_value in a native table; varchar holds 10,000 characters.")
    ] = "varchar",
    segment_size: Annotated[int, typer.Option(min=1, help="Ids in a segment of a native table.")] = (
        DEFAULT_SEGMENT_SIZE
    ),
    checks: Annotated[
        bool | None,
        typer.Option(
            "--checks/--no-checks",
            help="CHECK constraints: writers are refused what Kafka can never take. Default: in a native table.",
            show_default=False,
        ),
    ] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the SQL for your own migrations, change nothing.")
    ] = False,
) -> None:
    """Create the outbox table, and those beside it, unless they are there. What is there is not changed, but for the
    constraints that a native table lacks: rows that are in it are exempt, and writers wait for milliseconds.

    The native layout serves every source; goharvest's is the one that goharvest itself creates. Beside the outbox come
    the table of parked records and, with a native one, those of its subscriptions and segments.

    Examples:

      harvest init -f reaper.yaml

      HARVEST_DSN="host=db user=app dbname=shop" harvest init --table billing.outbox --value-type bytea

      harvest init --goharvest -f reaper.yaml

      harvest init --print > migrations/0001_outbox.sql
    """
    harvest = None if print_ and config is None and table is not None else configuration(config).harvest
    outbox = OutboxTable.parse(table or (harvest.outbox_table if harvest is not None else ""))
    if harvest is not None and harvest.columns is not None:
        _init_mapped(harvest, harvest.columns, outbox, print_=print_)
        return
    definition = NativeTable(
        outbox=outbox, value_type=value_type, segment_size=segment_size, has_checks=checks is not False
    )
    if print_ or harvest is None:
        goharvest = [outbox.create_statement(), *(check_statements(outbox) if checks else [])]
        _print(outbox, goharvest if native is False else definition.create_statements())
        return
    with connect(harvest.data_source.conninfo()) as connection:
        for name, new in _created(connection, definition, native=native):
            typer.echo(f"{'created' if new else 'already there, and fit for use'}: {name}")
        if checks or (checks is None and outbox.kind(connection) == "native"):
            _add_checks(connection, outbox)


def _init_mapped(harvest: HarvestConfig, columns: ColumnMapping, outbox: OutboxTable, *, print_: bool) -> None:
    """Check a table of another layout, which is yours to make, and create what stands beside it."""
    if print_:
        for statement in beside_statements(outbox):
            typer.echo(f"{statement.as_string(None)};\n")
        return
    with connect(harvest.data_source.conninfo()) as connection:
        if not outbox.exists(connection):
            outbox.refuse_hidden(connection)
            raise OutboxTableError(
                f"there is no table {outbox} in this database",
                evidence="`columns` says that it is of another layout, which nobody but you knows how to make",
                next_step="create it, then run this again; or leave `columns` out for a native table",
            )
        check_mapped(connection, outbox, columns)
        new = create_beside(connection, outbox)
        typer.echo(f"already there, and fit for use: {outbox}")
        for each in (outbox.subscriptions, outbox.set_aside):
            typer.echo(f"{'created' if new else 'already there, and fit for use'}: {each}")


def _created(
    connection: psycopg.Connection[tuple[object, ...]], definition: NativeTable, *, native: bool | None
) -> list[tuple[object, bool]]:
    """Create what is missing, and tell of each table whether it was created."""
    outbox = definition.outbox
    names = [
        outbox.parked,
        *([] if native is False else [outbox.subscriptions, outbox.segments]),
    ]  # or their names fail
    new = outbox.create(connection) if native is False else definition.create(connection)
    kind = outbox.kind(connection)
    if native is not None and native is not (kind == "native"):
        raise OutboxTableError(
            f"there is a table {outbox} of the other layout",
            evidence=f"it has the {kind} layout",
            next_step="`harvest migrate` turns it into a native one, while others use it"
            if native
            else "name another table with --table, or leave out --goharvest: the native layout serves every source",
        )
    parked = ParkedRecords(outbox)
    created: list[tuple[object, bool]] = [(outbox, new), (names[0], parked.create(connection))]
    if kind == "native":
        new_beside = create_beside(connection, outbox) or new
        created += [(outbox.subscriptions, new_beside), (outbox.segments, new_beside)]
    outbox.check(connection)
    parked.check(connection)
    return created


def _add_checks(connection: psycopg.Connection[tuple[object, ...]], outbox: OutboxTable) -> None:
    added = add_checks(connection, outbox)
    if added is None:
        typer.echo(f"constraints are missing, which only the owner of {outbox} may add: have it run this", err=True)
    for name in added or ():
        typer.echo(f"added, for new records: CHECK {name} of {outbox}")


def _print(outbox: OutboxTable, statements: Sequence[sql.Composed]) -> None:
    for statement in (*statements, ParkedRecords(outbox).create_statement()):
        typer.echo(f"{statement.as_string(None)};\n")
