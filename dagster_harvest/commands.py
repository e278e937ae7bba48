"""Commands for an operator of an outbox, as they are typed where the code location runs."""

import os
import shlex

from dagster_harvest.resources import CONFIG_VARIABLE
from dagster_harvest.settings import OutboxSettings


def harvest_command(settings: OutboxSettings, words: str) -> str:
    """Return `harvest WORDS` for the outbox, with its configuration file, table and connection string. The command
    names the variable with the connection string, not its value."""
    parts = [f"HARVEST_OUTBOX_TABLE={shlex.quote(settings.stated_table)}"] if settings.stated_table else []
    parts += [f'HARVEST_DSN="${settings.dsn_variable}"'] if settings.dsn_variable else []
    file = settings.config_file or os.environ.get(CONFIG_VARIABLE)
    parts += [f"harvest {words}", *([f"-f {shlex.quote(file)}"] if file else [])]
    return f"`{' '.join(parts)}`"
