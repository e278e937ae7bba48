"""Options that several commands share, and how they become a configuration."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harvest_lib.errors import ConfigError

if TYPE_CHECKING:
    from harvest_lib.config import HarvestConfig, ReaperFile

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "--file",
        "-f",
        help="YAML configuration; goharvest's reaper.yaml works too. Default: HARVEST_* variables.",
    ),
]
AllowEmpty = Annotated[
    bool, typer.Option("--allow-empty", help="Exit with 0 instead of 10 if there was nothing to check.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

# These repeat what the modules of the library say: loading them would make help slow. A test compares them.
Source = Literal["mark", "snapshot", "transaction_id"]
ColumnType = Literal["varchar", "text", "bytea"]
Isolation = Literal["read_committed", "read_uncommitted"]
PromiseName = Literal["at_least_once", "transactional"]
DEFAULT_SEGMENT_SIZE = 10_000_000
DEFAULT_AHEAD = 4


class LogFormat(StrEnum):
    CONSOLE = "console"
    JSON = "json"


def refuse_columns(harvest: "HarvestConfig", why: str) -> None:
    """Raise ConfigError if the configuration maps `columns` and a command cannot handle that."""
    if harvest.columns is not None:
        raise ConfigError(
            f"the table {harvest.outbox_table} has another layout: {why}",
            field="columns",
            next_step="leave `columns` out of the configuration if you mean another table",
        )


def configuration(path: Path | None, *, elects: bool = False) -> "ReaperFile":
    """Read the configuration from a file, or from the environment alone.

    A command that takes no part in the election (`elects` false) needs no leader group.
    """
    from harvest_lib.config import HarvestConfig, ReaperFile, load

    if path is not None:
        return load(path)
    grouped = elects or "HARVEST_LEADER_GROUP_ID" in os.environ
    return ReaperFile(harvest=HarvestConfig() if grouped else HarvestConfig(leadership="solo"))
