"""Connection of the commands to the outbox that the configuration names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from harvest_lib.cli.options import configuration
from harvest_lib.config import HarvestConfig
from harvest_lib.database import connect
from harvest_lib.errors import ConfigError
from harvest_lib.outbox import OutboxTable


@contextmanager
def open_outbox(
    config: Path | None, table: str | None = None, *, refuse_columns: str = ""
) -> Iterator[tuple[HarvestConfig, OutboxTable, psycopg.Connection[Any]]]:
    """Connect to the outbox. Raise ConfigError if it maps `columns` and there is a reason to refuse that."""
    harvest = configuration(config).harvest
    if refuse_columns and harvest.columns is not None:
        raise ConfigError(
            f"the table {harvest.outbox_table} has another layout: {refuse_columns}",
            field="columns",
            next_step="leave `columns` out of the configuration if you mean another table",
        )
    outbox = OutboxTable.parse(table or harvest.outbox_table)
    with connect(harvest.data_source.conninfo()) as connection:
        yield harvest, outbox, connection
