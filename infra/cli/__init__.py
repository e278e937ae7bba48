"""The commands that exist in a clone of the repository only. `harvest_lib.cli` registers them when it finds them."""

from infra.cli.bench import bench
from infra.cli.chaos import chaos
from infra.cli.history import history
from infra.cli.platform import platform

COMMANDS = (bench, chaos, history, platform)
