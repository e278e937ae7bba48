"""Options of the adaptor `postgres`, for its reader and its writer."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from harvest_lib.config.data_source import DataSource
from harvest_lib.pipeline.adaptors import Options


class PostgresReading(Options):
    """The options of copying and following tables."""

    data_source: DataSource
    """The Postgres server and database, as in `dataSource`. The role needs REPLICATION, and SELECT on the tables."""

    slot: str = Field(pattern=r"^[a-z0-9_]{1,63}$")
    """The replication slot, created if it is missing. Two pipelines cannot share a slot."""

    publication: str | None = Field(default=None, min_length=1, max_length=63)
    """The publication, created if it is missing (the role must own the tables). Default: the name of the slot."""

    tables: Sequence[str] = ()
    """Names of tables, as `schema.table`; the default schema is `public`. Default: all tables of the publication."""

    initial_copy: bool = True
    """True to copy the rows of the tables first. Default: true."""

    batch_rows: int = Field(default=1_000, ge=1, le=100_000)
    """Messages in a batch, at most. Default: 1,000."""


class PostgresWriting(Options):
    """The options of writing to tables. The tables must exist, and have a primary key or an entry in `key`."""

    data_source: DataSource
    """The server and database, as in `dataSource`. The role needs SELECT, INSERT, UPDATE and DELETE on the tables."""

    table: str | None = None
    """The table for all messages. Default: the table whose name is the message's namespace."""

    key: Mapping[str, Sequence[str]] = Field(default_factory=dict)
    """Per table (`schema.table`): the columns that identify a row. They need a unique index. Default: the primary
    key."""
