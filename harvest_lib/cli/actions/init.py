"""Creation of tables by `harvest init`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
import typer
from psycopg import sql

from harvest_lib.config import ColumnMapping, HarvestConfig
from harvest_lib.database import connect
from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError
from harvest_lib.outbox import NativeTable, OutboxTable, ParkedRecords, add_checks, check_column_mapping
from harvest_lib.outbox.native_table import beside_statements, create_beside


def create_beside_mapped(harvest: HarvestConfig, columns: ColumnMapping, outbox: OutboxTable, *, print_: bool) -> None:
    """Check a table with mapped columns, which the user creates, and create its companion tables."""
    if print_:
        for statement in beside_statements(outbox):
            typer.echo(f"{statement.as_string(None)};\n")
        return
    with connect(harvest.data_source.conninfo()) as connection:
        if not outbox.exists(connection):
            outbox.refuse_hidden(connection)
            raise OutboxTableError(
                f"there is no table {outbox} in this database",
                evidence="`columns` maps a table of another layout, which the harvester cannot create",
                next_step="create it, then run this again; or leave `columns` out for a native table",
            )
        check_column_mapping(connection, outbox, columns)
        new = create_beside(connection, outbox)
        typer.echo(f"already exists and is valid: {outbox}")
        for each in (outbox.subscriptions, outbox.parked_ids):
            typer.echo(f"{'created' if new else 'already exists and is valid'}: {each}")


@contextmanager
def creating(connection: psycopg.Connection[tuple[object, ...]], outbox: OutboxTable) -> Iterator[None]:
    """Say who may create tables, where our role may not."""
    try:
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


def create_tables(
    connection: psycopg.Connection[tuple[object, ...]], definition: NativeTable, *, native: bool | None
) -> list[tuple[object, bool]]:
    """Create missing tables, and return for each table whether it was created."""
    outbox = definition.outbox
    names = [
        outbox.parked,
        *([] if native is False else [outbox.subscriptions, outbox.segments]),
    ]  # or their names fail
    new = outbox.create(connection) if native is False else definition.create(connection)
    kind = outbox.kind(connection)
    if native is not None and native is not (kind == "native"):
        raise OutboxTableError(
            f"the table {outbox} exists with the other layout",
            evidence=f"it has the {kind} layout",
            next_step="`harvest migrate` converts it to the native layout while it is in use"
            if native
            else "name another table with --table, or leave out --goharvest: the native layout works with every source",
        )
    parked = ParkedRecords(outbox)
    created: list[tuple[object, bool]] = [(outbox, new), (names[0], parked.create(connection))]
    if kind == "native":
        new_beside = create_beside(connection, outbox) or new
        created += [(outbox.subscriptions, new_beside), (outbox.segments, new_beside)]
    outbox.check(connection)
    parked.check(connection)
    return created


def add_missing_checks(connection: psycopg.Connection[tuple[object, ...]], outbox: OutboxTable) -> None:
    added = add_checks(connection, outbox)
    if added is None:
        typer.echo(
            f"constraints are missing; only the owner of {outbox} can add them by running this command", err=True
        )
    for name in added or ():
        typer.echo(f"added, for new records: CHECK {name} of {outbox}")


def print_statements(outbox: OutboxTable, statements: Sequence[sql.Composed]) -> None:
    for statement in (*statements, ParkedRecords(outbox).create_statement()):
        typer.echo(f"{statement.as_string(None)};\n")
