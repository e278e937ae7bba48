"""Processes that demos and the fault-injection tests start: their environment, their end, and one that failed."""

import os
from collections.abc import Sequence

from harvest_lib.errors import StackError
from harvest_lib.local_stack.process import ServerProcess, tail
from infra.harvester import Harvester, Lead


def environment(*hidden: str) -> dict[str, str]:
    """Return our environment without the variables of harvesters, which would go before their files, and without those
    that begin with one of `hidden`."""
    prefixes = ("HARVEST_", *hidden)
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def failed(process: ServerProcess, how: str, lines: int = 5) -> StackError:
    """Return the error that a process has failed, with the last lines of its log."""
    return StackError(f"{process.name} {how}", evidence=tail(process.log, lines=lines), next_step=f"read {process.log}")


def require_up(process: ServerProcess, lines: int = 5) -> None:
    """Raise StackError if a process has ended."""
    if process.pid is None:
        raise failed(process, "ended by itself", lines)


def end_in_order(harvesters: Sequence[Harvester]) -> list[Lead]:
    """Ask harvesters to stop, all at once, and return the terms that had begun since their last look. Raises StackError
    if one had to be forced."""
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
