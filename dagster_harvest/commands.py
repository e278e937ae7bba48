"""Commands for an operator of an outbox, as they are typed where the code location runs."""

import os
import shlex

import dagster as dg

from dagster_harvest.resources import CONFIG_VARIABLE
from dagster_harvest.settings import OutboxSettings


def harvest_command(settings: OutboxSettings, words: str) -> str:
    """Return `harvest WORDS` for the outbox, with its configuration file, table and connection string. The command
    names the variable with the connection string, not its value."""
    parts = [f"HARVEST_OUTBOX_TABLE={shlex.quote(settings.stated_table)}"] if settings.stated_table else []
    match settings.stated_dsn:
        case dg.EnvVar() as variable:
            parts.append(f'HARVEST_DSN="${variable.env_var_name}"')
        case str() as dsn:
            parts.append(f"HARVEST_DSN={shlex.quote(dsn)}")
    file = settings.config_file or os.environ.get(CONFIG_VARIABLE)
    parts += [f"harvest {words}", *([f"-f {shlex.quote(file)}"] if file else [])]
    return f"`{' '.join(parts)}`"


def audit_command(settings: OutboxSettings) -> str:
    """Return the command that compares the topics with the outbox again."""
    query = ["--committed", committed] if (committed := settings.audited.committed) is not None else []
    return harvest_command(settings, shlex.join(["audit", "--topic", ",".join(settings.topics), *query]))
