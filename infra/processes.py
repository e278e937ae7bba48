"""Helpers for the processes that demos and fault injection start: their environment, their failure and their end."""

import os
from collections.abc import Sequence

from harvest_lib.errors import StackError
from harvest_lib.local_stack.process import ServerProcess, tail
from infra.harvester import Harvester, Lead


def environment(*hidden: str) -> dict[str, str]:
    """Return this process's environment without the variables that begin with `HARVEST_` or a prefix in `hidden`.
    `HARVEST_` variables would override the configuration files of harvesters."""
    prefixes = ("HARVEST_", *hidden)
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def failed(process: ServerProcess, how: str, lines: int = 5) -> StackError:
    """Return an error about a failed process, with the last lines of its log."""
    return StackError(f"{process.name} {how}", evidence=tail(process.log, lines=lines), next_step=f"read {process.log}")


def require_up(process: ServerProcess, lines: int = 5) -> None:
    """Raise StackError, with the last lines of the log, if a process has ended."""
    if process.pid is None:
        raise failed(process, "ended by itself", lines)


def end_in_order(harvesters: Sequence[Harvester]) -> list[Lead]:
    """Request all harvesters to stop at the same time, wait for them, and return the terms that began since their last
    `look`. Raises StackError if a harvester did not log a clean stop."""
    for harvester in harvesters:
        harvester.process.begin_stop()
    for harvester in harvesters:
        harvester.process.stop()
    began: list[Lead] = []
    for harvester in harvesters:
        began += harvester.look()
        if not harvester.stopped_cleanly:
            raise failed(harvester.process, "did not stop in order", lines=2)
    return began
