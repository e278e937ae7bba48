"""Configurations of processes that join an election, and of those that only read, which belong to no pool."""

import os
from typing import Any

from harvest_lib.config.environment import unknown_variables
from harvest_lib.config.model import HarvestConfig
from harvest_lib.config.problems import Origins, config_error
from harvest_lib.config.yaml_file import ReaperFile, load

_POOL = ("leader_group_id", "leaderGroupID")


def load_or_variables(path: str | os.PathLike[str] | None, *, elects: bool = False) -> ReaperFile:
    """Return the configuration from a file, or from the environment alone if `path` is None or empty.

    `elects`: the process takes part in the election, so the configuration must have a leader group. Raises ConfigError.
    """
    return load(path) if path else ReaperFile(harvest=configured(elects=elects))


def configured(*, elects: bool = False, **arguments: Any) -> HarvestConfig:
    """Return the configuration from fields of HarvestConfig and the environment.

    `elects`: the process takes part in the election, so the configuration must have a leader group. Without `elects`, a
    configuration that names no group has `leadership: solo`. Raises ConfigError.
    """
    if elects or "HARVEST_LEADER_GROUP_ID" in os.environ or any(name in arguments for name in _POOL):
        return HarvestConfig(**arguments)
    return HarvestConfig(**{**arguments, "leadership": "solo"})


def refuse_unknown_variables() -> None:
    """Raise ConfigError if the environment has variables `HARVEST_...` that mean nothing to this project."""
    if problems := unknown_variables(os.environ, HarvestConfig.model_fields):
        raise config_error(problems, Origins(file="the environment"))
