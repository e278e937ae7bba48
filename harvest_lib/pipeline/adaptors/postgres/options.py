"""The options of reader and writer of `postgres`."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from harvest_lib.config.data_source import DataSource
from harvest_lib.pipeline.adaptors import Options


class PostgresReading(Options):
    """Tables to be copied and followed."""

    data_source: DataSource
    """The Postgres server and database, as in `dataSource`. The role needs REPLICATION, and SELECT on the tables."""

    slot: str = Field(pattern=r"^[a-z0-9_]{1,63}$")
    """The replication slot, created if it is missing. Two pipelines cannot share a slot."""

    publication: str | None = Field(default=None, min_length=1, max_length=63)
    """The publication, made if it is not there (if the role owns the tables). Default: named as the slot."""

    tables: Sequence[str] = ()
    """`schema.table`, each; without a schema it is `public`. Default: all that the publication has."""

    initial_copy: bool = True
    """True to copy the rows of the tables first. Default: true."""

    batch_rows: int = Field(default=1_000, ge=1, le=100_000)
    """Messages in a batch, at most. Default: 1,000."""


class PostgresWriting(Options):
    """Tables to be written to. They have to be there, each with a primary key or with `key`."""

    data_source: DataSource
    """The server and database, as in `dataSource`. The role needs SELECT, INSERT, UPDATE and DELETE on the tables."""

    table: str | None = None
    """The table for all messages. Default: the table that the namespace names."""

    key: Mapping[str, Sequence[str]] = Field(default_factory=dict)
    """Per table (`schema.table`): the columns that identify a row, with a unique index. Default: the
    primary key."""
