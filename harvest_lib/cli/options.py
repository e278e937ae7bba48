"""Options that several commands share, and how they become a configuration."""

import os
from pathlib import Path
from typing import Annotated

import typer

from harvest_lib.config import HarvestConfig, ReaperFile, load
from harvest_lib.errors import ConfigError

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "--file", "-f", help="YAML, goharvest's reaper.yaml included. Without it: HARVEST_* variables."
    ),
]
AllowEmpty = Annotated[
    bool, typer.Option("--allow-empty", help="Exit with 0 where there was nothing to check, instead of with 10.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def refuse_columns(harvest: HarvestConfig, why: str) -> None:
    """Raise ConfigError where the outbox is of another layout than a command is about."""
    if harvest.columns is not None:
        raise ConfigError(
            f"the table {harvest.outbox_table} is of another layout: {why}",
            field="columns",
            next_step="leave `columns` out of the configuration where another table is meant",
        )


def configuration(path: Path | None, *, elects: bool = False) -> ReaperFile:
    """Read the configuration from a file, or from the environment alone.

    A command that stands in no election (`elects` false) needs no leader group.
    """
    if path is not None:
        return load(path)
    grouped = elects or "HARVEST_LEADER_GROUP_ID" in os.environ
    return ReaperFile(harvest=HarvestConfig() if grouped else HarvestConfig(leadership="solo"))
