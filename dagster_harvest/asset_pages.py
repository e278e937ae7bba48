"""Metadata for the pages of outbox and topics: links, the place of the table, its columns. Nothing contains a user or a
password."""

from typing import Any

import dagster as dg
import psycopg

from dagster_harvest.settings import OutboxSettings
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.translation import translated

_COLUMNS = """
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull FROM pg_attribute AS a
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


def static_metadata(settings: OutboxSettings, storage_kind: str) -> dict[str, Any]:
    """Return the metadata that is known without a connection: the kind of storage, and the links of the settings."""
    links = {name: dg.MetadataValue.url(url) for name, url in settings.links.items()}
    return {"dagster/storage_kind": storage_kind, **links}


def place_of(connection: psycopg.Connection[Any], outbox: OutboxTable) -> dict[str, Any]:
    """Return the metadata of the table where it is now: its full name, its URI, its columns."""
    info, placed = connection.info, outbox.placed(connection)
    host = "localhost" if info.host.startswith("/") else info.host
    with translated():
        columns = connection.execute(_COLUMNS, (str(placed),)).fetchall()
    schema = dg.TableSchema(
        columns=[
            dg.TableColumn(name, type_, constraints=dg.TableColumnConstraints(nullable=not is_required))
            for name, type_, is_required in columns
        ]
    )
    name = ".".join([info.dbname, *placed.parts])
    return {
        "dagster/table_name": name,
        "dagster/uri": f"postgres://{host}:{info.port}/{name.replace('.', '/')}",
        "dagster/column_schema": dg.MetadataValue.table_schema(schema),
    }
