"""Starts a local stack with the platform, in the background or in the foreground."""

from pathlib import Path
from typing import Any

from harvest_lib.local_stack import supervisor
from harvest_lib.local_stack.description import Description
from harvest_lib.local_stack.stack import Stack
from infra.platform.platform import DAGS, LOGIN, Platform

HOLDER = "infra.platform"
"""The module whose process runs the stack in the background."""


def make_stack(state: Path, *, definitions: str, dags: str, observe: bool, **servers: Any) -> Stack:
    """Return the stack; nothing is started yet. `dags` is a folder, or empty for our DAGs. `servers` are options of
    `Stack`."""
    folder = Path(dags) if dags else None
    platform = Platform(state.resolve(), definitions=definitions, dags=folder, observe=observe)
    return Stack(state, services=platform, **servers)


def up(state: Path, **options: Any) -> tuple[Description, bool]:
    """Start the stack in the background. Return its description, and True if it was running already. `options` are the
    options of `make_stack`.

    Raises StackError if the stack does not start, or if a different stack runs, for example with other DAGs.
    """
    return supervisor.up(state, options, holder=HOLDER, difference=lambda found: difference(found, **options))


def difference(found: Description, *, dags: str, observe: bool, **_: Any) -> str:
    """Return a sentence about how a running stack differs from the requested platform; empty if it does not differ."""
    if LOGIN not in found.notes:
        return "a stack is up already, without Dagster and Airflow"
    known = found.notes.get(DAGS, "")
    if dags != known:
        return f"a stack is up already, with {f'the DAGs of {known}' if known else 'our DAGs'}"
    if observe and not any(server.name == "prometheus" for server in found.servers):
        return "a stack is up already, without Prometheus"
    return ""
