"""Outbox harvester: moves a transactional outbox from Postgres to Kafka, in per-key order, without losing records.

`Harvest`, configured by `HarvestConfig`, delivers records; `append` writes them. A name that needs pydantic, psycopg or
confluent_kafka is imported at its first use, so that `import harvest_lib` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from harvest_lib.errors import HarvestError
from harvest_lib.events import Event, LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked, MeterRead
from harvest_lib.record import OutboxRecord, RecordLimits

if TYPE_CHECKING:
    from harvest_lib.config import HarvestConfig, Limits
    from harvest_lib.harvester.harvest import Drained, Harvest, State
    from harvest_lib.outbox.append import append, append_async

    __version__: str
else:
    _LOADED_AT_FIRST_USE = {
        "harvest_lib.config": ("HarvestConfig", "Limits"),
        "harvest_lib.harvester.harvest": ("Drained", "Harvest", "State"),
        "harvest_lib.outbox.append": ("append", "append_async"),
    }

    def _installed_version() -> str:
        metadata = import_module("importlib.metadata")
        try:
            return metadata.version("outbox-harvester")
        except metadata.PackageNotFoundError:
            return "0+unknown"  # the package is imported from a path, without an installation

    def __getattr__(name: str) -> object:
        if name in ("config", "outbox"):  # `harvest_lib.config.load`, after `import harvest_lib` alone
            return import_module(f"harvest_lib.{name}")
        if name == "__version__":
            value = globals()[name] = _installed_version()
            return value
        for module, names in _LOADED_AT_FIRST_USE.items():
            if name in names:
                value = globals()[name] = getattr(import_module(module), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Drained",
    "Event",
    "Harvest",
    "HarvestConfig",
    "HarvestError",
    "LeaderAcquired",
    "LeaderFenced",
    "LeaderRefreshed",
    "LeaderRevoked",
    "Limits",
    "MeterRead",
    "OutboxRecord",
    "RecordLimits",
    "State",
    "__version__",
    "append",
    "append_async",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
