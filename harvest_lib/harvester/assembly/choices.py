"""Resolves `auto` in a configuration by the layout of the table. No other module of the harvester interprets `auto`."""

from typing import Any

import psycopg

from harvest_lib.config import HarvestConfig
from harvest_lib.config.agreement import disagreements
from harvest_lib.config.choices import Choices, Table, choose
from harvest_lib.config.problems import Origins, config_error
from harvest_lib.errors import ConfigError
from harvest_lib.outbox import OutboxTable


def reads_table(config: HarvestConfig) -> bool:
    """Return True if `auto` in a configuration can be resolved only with the layout of the table."""
    return config.source == "auto" and config.columns is None


def read_choices(
    config: HarvestConfig, connection: psycopg.Connection[Any], table: OutboxTable, *, marks: bool = False
) -> Choices:
    """Return what `auto` in a configuration means for this table. Raises OutboxTableError if the table is missing."""
    return choices_of(config, table.kind(connection) if reads_table(config) and not marks else None, marks=marks)


def choices_of(config: HarvestConfig, kind: Table | None = None, *, marks: bool = False) -> Choices:
    """Return what `auto` in a configuration means for a table with the layout `kind`. `kind` is required if
    `reads_table` returns True."""
    found = "mapped" if config.columns is not None else kind
    return choose(
        found,
        source=config.source,
        delivery=config.delivery,
        leadership=config.leadership,
        shards=config.shards,
        marks=marks,
    )


def chosen(config: HarvestConfig, choices: Choices) -> HarvestConfig:
    """Return the configuration with `auto` replaced by the choices."""
    return config.model_copy(
        update={"source": choices.source, "delivery": choices.delivery, "leadership": choices.leadership}
    )


def resolved(config: HarvestConfig, choices: Choices, table: OutboxTable, *, marks: bool = False) -> HarvestConfig:
    """Return the configuration with `auto` replaced by the choices. With `marks` an embedder's parts mark, whatever the
    source. Raises ConfigError if a setting contradicts the choices."""
    used = chosen(config, choices)
    if (marks or used.mode.marks) and config.shards > 1:
        raise ConfigError(
            f"`shards` is {config.shards}, but `mark` has one writer: its leader marks for all keys",
            field="shards",
            next_step=f"set it to 1, or turn {table} into the native table with `harvest migrate`",
        )
    if "auto" in (config.delivery, config.leadership) and (problems := disagreements(used)):
        raise config_error(problems, Origins())
    return used


def not_chosen(setting: str) -> AssertionError:
    """Return the error to raise if a setting is used although it is still `auto`."""
    return AssertionError(f"`{setting}` is still auto: see `resolved`")
