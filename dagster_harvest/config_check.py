"""The check of an outbox' `config_file` when the definitions are loaded, so that `dg check defs` reports its errors."""

from pathlib import Path

from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings
from harvest_lib.errors import ConfigError


def require_sound_file(settings: OutboxSettings, project_root: Path) -> None:
    """Raise ConfigError for a file with errors that a run would find too.

    A wrong value of an environment variable is not an error here, because a run may have another value. A file outside
    the project may be missing here, because only the machine that harvests may have it.
    """
    if settings.config_file is None:
        return
    file = Path(settings.config_file)
    if not file.is_file() and not file.is_relative_to(project_root.resolve()):
        return
    try:
        HarvesterResource(config_file=str(file), outbox_table=settings.stated_table).config()
    except ConfigError as error:
        if any(each.source in {"", str(file)} for each in error.problems):
            raise
