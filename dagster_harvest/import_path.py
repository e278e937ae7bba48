"""Objects that an attribute names by an import path, such as `acme.jobs.orders.frame`."""

import importlib.util
import pkgutil
from typing import Any

from harvest_lib.errors import ConfigError

DOTTED = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"
"""Pattern of an import path: a module and a name in it."""


def imported(path: str, *, field: str) -> Any:
    """Import the object. Raises ConfigError."""
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{path} cannot be imported: {error}",
            field=field,
            next_step="correct the path, or install its package where this code runs",
        ) from error


def require_module(module: str, *, field: str) -> None:
    """Raise ConfigError if there is no such module. Only the packages above the module are imported."""
    try:
        found = importlib.util.find_spec(module)
    except ImportError:
        found = None
    if found is None:
        raise ConfigError(
            f"there is no module {module}",
            field=field,
            next_step="correct the path, or install its package where Dagster loads these definitions",
        )
