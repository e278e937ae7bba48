"""Options that several commands share, and functions that open the configuration and the outbox of a command."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harvest_lib.cli.usage import Misuse, require_table
from harvest_lib.errors import ConfigError
from harvest_lib.process.logging_levels import NAMED_LEVELS, python_level

if TYPE_CHECKING:
    import psycopg

    from harvest_lib.config import HarvestConfig, ReaperFile
    from harvest_lib.outbox import OutboxTable

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-f",
        metavar="FILE",
        help="YAML configuration. Default: the file that HARVEST_CONFIG names, else ./harvest.yaml if it exists, else "
        "the variables HARVEST_* alone. Variables override the file.",
    ),
]
AllowEmpty = Annotated[
    bool, typer.Option("--allow-empty", help="Exit with 0 instead of 10 if there was nothing to check.")
]
TableName = Annotated[
    str | None, typer.Option("--table", metavar="TABLE", help="Name of the table. Default: the configuration's.")
]
OnlyTopics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="Only records for these topics, with commas between them; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

# These types are copies of types of the library, because importing its modules would make `--help` slow. A test
# compares them.
Source = Literal["mark", "snapshot", "transaction_id"]
ReadingSource = Literal["snapshot", "transaction_id"]
PostgresVersion = Literal["18", "16"]
KafkaVersion = Literal["4.3.1", "3.9.1"]
BROKERS = (1, 3)
ColumnType = Literal["varchar", "text", "bytea"]
Isolation = Literal["read_committed", "read_uncommitted"]
LogFormat = Literal["console", "json"]
_HERE = Path("harvest.yaml")
DEFAULT_SEGMENT_SIZE = 10_000_000
DEFAULT_AHEAD = 4


def parse_level(name: str) -> str:
    """Return the level of Python's logging with this name. For an unknown name, raise a usage error that lists all."""
    level = python_level(name)
    if level is None:
        raise Misuse(f"--log-level {name!r} is unknown", next_step=f"choose one of {NAMED_LEVELS}")
    return level


LogLevel = Annotated[
    str, typer.Option("--log-level", parser=parse_level, metavar="LEVEL", help=f"One of {NAMED_LEVELS}.")
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", metavar="console|json", help="console is for people, json for machines.")
]


Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        envvar="HARVEST_LISTEN",
        metavar="HOST:PORT",
        help="Serve /metrics, /livez, /readyz and /progress there, by plain HTTP: see docs/monitoring.md. "
        "Without HOST on every IPv4 address.",
    ),
]


def names_of(given: Iterable[str] | None) -> list[str]:
    """Return the distinct names from all values of a repeated option. In a value commas separate names; a later check
    refuses an empty name and a name with a space."""
    return list(dict.fromkeys(name.strip() for each in given or () for name in each.split(",")))


def configuration(path: Path | None, *, elects: bool = False) -> "ReaperFile":
    """Return the configuration from the file of `chosen_file`, or from the environment alone.

    `elects`: the command takes part in the election, so the configuration must have a leader group. An error of the
    configuration names the reason why this file was read, or none.
    """
    from harvest_lib.config.reading import load_or_variables

    file, origin = chosen_file(path)
    try:
        return load_or_variables(file, elects=elects)
    except ConfigError as error:
        raise (error if file is path and path is not None else error.read_from(origin)) from error.__cause__


def chosen_file(path: Path | None) -> tuple[Path | None, str]:
    """Return the file of the configuration, and the reason for this choice. None means that the configuration consists
    of variables."""
    if path is not None:
        return path, f"--config names {path}"
    if named := os.environ.get("HARVEST_CONFIG"):
        return Path(named), f"HARVEST_CONFIG names {named}"
    if _HERE.is_file():
        return _HERE, "harvest.yaml is in this folder"
    return None, "variables HARVEST_* only: no --config, no HARVEST_CONFIG, no harvest.yaml in this folder"


@contextmanager
def open_outbox(
    config: Path | None, table: str | None = None, *, refuse_columns: str = ""
) -> "Iterator[tuple[HarvestConfig, OutboxTable, psycopg.Connection[Any]]]":
    """Connect to the outbox of the configuration, or to `table`. Yield configuration, table and connection.
    `refuse_columns` is the reason why the command refuses a table with mapped `columns`. If such a reason is given,
    raise ConfigError for a configuration with `columns`."""
    from harvest_lib.outbox import OutboxTable
    from harvest_lib.postgres.database import connect

    require_table(table, "--table")
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
