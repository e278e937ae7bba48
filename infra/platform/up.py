"""A local stack with the platform on it, held in the background or in the foreground."""

from pathlib import Path
from typing import Any

from harvest_lib.local_stack import supervisor
from harvest_lib.local_stack.description import Description
from harvest_lib.local_stack.stack import Stack
from infra.platform.platform import DAGS, LOGIN, Platform

HOLDER = "infra.platform"
"""The module that holds it in the background."""


def make_stack(state: Path, *, definitions: str, dags: str, observe: bool, **servers: Any) -> Stack:
    """Return the stack, which is not started yet. `dags` is a folder, empty for our DAGs; `servers` are for `Stack`."""
    folder = Path(dags) if dags else None
    platform = Platform(state.resolve(), definitions=definitions, dags=folder, observe=observe)
    return Stack(state, services=platform, **servers)


def up(state: Path, **options: Any) -> tuple[Description, bool]:
    """Bring the stack up in the background; returns it, and whether it was up already. Options are as of `make_stack`.

    Raises StackError when it does not come up, or another stack is up, such as one with other DAGs.
    """
    return supervisor.up(state, options, holder=HOLDER, difference=lambda found: difference(found, **options))


def difference(found: Description, *, dags: str, observe: bool, **_: Any) -> str:
    """Return what a stack that is up lacks of the platform, an empty text if nothing."""
    if LOGIN not in found.notes:
        return "a stack is up already, without Dagster and Airflow"
    known = found.notes.get(DAGS, "")
    if dags != known:
        return f"a stack is up already, with {f'the DAGs of {known}' if known else 'our DAGs'}"
    if observe and not any(server.name == "prometheus" for server in found.servers):
        return "a stack is up already, without Prometheus"
    return ""
