"""Commands that exist only in a clone of the repository. `harvest_lib.cli` registers them if it finds this package."""

from infra.cli.bench import bench
from infra.cli.chaos import chaos
from infra.cli.history import history
from infra.cli.platform import platform

COMMANDS = (bench, chaos, history, platform)
