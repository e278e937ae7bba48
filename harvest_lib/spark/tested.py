"""The versions of Spark with which the jobs and the data source are tested.

The requirement of the extra does not reach a cluster, which brings its own Spark.
"""

from harvest_lib.errors import ConfigError

OLDEST, NEWEST = (4, 0), (4, 3)
"""The oldest and the newest minor version."""


def require_tested(version: str) -> None:
    """Raise ConfigError for a version of Spark with which nothing is tested."""
    minor = tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
    if OLDEST <= minor <= NEWEST:
        return
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    raise ConfigError(
        f"outbox-harvester is not tested with Spark {version}",
        field="pyspark",
        next_step=f"use Spark {oldest} to {newest}, or a version of outbox-harvester that knows this one",
    )
