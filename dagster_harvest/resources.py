"""The harvester's configuration as a Dagster resource.

Promises
- No value of this resource is a secret in clear text. `dsn` is an `EnvVar`: Dagster stores and shows only its name.
  Secrets in the YAML stay there: the resource does not copy them. A connection string with a password is refused.
- No file is read and no server is contacted before a run, a check or a tick needs the configuration.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, cast

import dagster as dg
import psycopg

from dagster_harvest.settings import DaemonSettings
from harvest_lib import __version__
from harvest_lib.config import HarvestConfig, load
from harvest_lib.conninfo import has_secret
from harvest_lib.errors import ConfigError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import connect

CONFIG_VARIABLE = "HARVEST_CONFIG"
STATEMENT_TIMEOUT = "10s"


class HarvesterResource(dg.ConfigurableResource["HarvesterResource"]):
    """The harvester's configuration file, and single values that override the file's."""

    config_file: str | None = None
    """Path of the YAML file. The file's values override HARVEST_* variables, because the whole process shares the
    variables. Default: the file that HARVEST_CONFIG names; the variables override the values of that file. Without any
    file only the variables count."""
    dsn: str | None = None
    """An `EnvVar` with the connection string of Postgres; default: as in the YAML, or HARVEST_DSN."""
    outbox_table: str | None = None
    """Default: as in the YAML, or `outbox`."""

    def get_resource_definition(self) -> Any:
        """Return the definition for Dagster's storage. Raises ConfigError for a password in clear text."""
        if self.dsn is not None and not isinstance(self.dsn, dg.EnvVar) and has_secret(self.dsn):
            raise ConfigError(
                "a connection string with a password is in clear text, where Dagster would store and show it",
                field="dsn",
                next_step='put it into an environment variable and write `dsn=EnvVar("HARVEST_DSN")`',
            )
        return super().get_resource_definition()

    def config(self, **overrides: Any) -> HarvestConfig:
        """Read the configuration. Raises ConfigError. The error names file, line and field, and never shows a value."""
        arguments = dict(overrides)
        if self.dsn is not None:
            arguments.setdefault("data_source", self.dsn)
        if self.outbox_table is not None:
            arguments.setdefault("outbox_table", self.outbox_table)
        file = self.config_file or os.environ.get(CONFIG_VARIABLE)
        if file:
            if not Path(file).is_file():
                raise ConfigError(
                    f"there is no configuration file {file}",
                    field="config_file" if self.config_file else CONFIG_VARIABLE,
                    next_step="name the harvester's YAML there, as it is seen from where Dagster runs this code",
                )
            return load(file, file_first=self.config_file is not None, **arguments).harvest
        return HarvestConfig(**arguments)

    def harvest(self) -> Harvest:
        """Return a harvester that is not started."""
        return Harvest(self.config())

    def conninfo(self) -> str:
        """Return the connection string with its password. Callers may put the string into a process's environment, but
        must not log it."""
        return self.config().data_source.conninfo()

    @property
    def table(self) -> OutboxTable:
        """The outbox. Raises ConfigError."""
        return OutboxTable.parse(self.config().outbox_table)

    def connect(self) -> "psycopg.Connection[Any]":
        """Open a connection with a statement timeout of 10 seconds, so that no tick hangs."""
        return cast("psycopg.Connection[Any]", connect(self.conninfo(), {"statement_timeout": STATEMENT_TIMEOUT}))


def version_of(config: HarvestConfig, daemon: DaemonSettings) -> str:
    """Return the version of a run: the library's version, and a digest of configuration and settings without their
    secrets."""
    parts = {
        "harvester": {**config.redacted(), "name": ""},  # the default name differs in each process
        "daemon": daemon.model_dump(exclude={"runs"}),
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    return f"{__version__}+{digest[:8]}"
