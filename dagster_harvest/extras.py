"""Packages of the extras `quality` and `spark`, which are imported only when they are needed."""

from collections.abc import Sequence
from importlib.util import find_spec

from harvest_lib.errors import ConfigError, install_hint

CONTRACTS = ("pandas", "pandera", "pyspark")
"""Packages that the checks `schema` import."""
EXPECTATIONS = (*CONTRACTS, "great_expectations")
"""Packages that the check `expectations` imports."""


def is_wanted(packages: Sequence[str], *, asked: bool | None, field: str) -> bool:
    """Return True if checks that import these packages are wanted: they are asked for, or nothing is said and the
    packages are installed. Raises ConfigError if the checks are asked for and a package is missing."""
    if asked:
        require_installed(packages, field, "quality,spark")
    return asked or (asked is None and not _missing(packages))


def require_installed(packages: Sequence[str], field: str, extras: str) -> None:
    """Raise ConfigError unless the packages are installed, which the extras bring. `field` is the setting that needs
    them."""
    if missing := _missing(packages):
        raise ConfigError(
            f"{', '.join(missing)} is not installed where Dagster loads this code",
            field=field,
            next_step=f"{install_hint(f'dagster,{extras}')}, or change `{field}`",
        )


def _missing(packages: Sequence[str]) -> list[str]:
    return [name for name in packages if find_spec(name) is None]
