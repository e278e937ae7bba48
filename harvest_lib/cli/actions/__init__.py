"""Work and output of the commands. A module of this folder is loaded at its first use: `actions.park.selected(…)`."""

# ruff: noqa: F401, I001 - the names are for mypy

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harvest_lib.cli.actions import audit, check, grants, init, liveness, log_output, outbox, park
    from harvest_lib.cli.actions import (
        partition,
        pipeline,
        pump,
        segments,
        stack,
        status,
        status_line,
        subscriptions,
        telemetry,
    )
    from harvest_lib.cli.actions import version
else:

    def __getattr__(name: str) -> object:
        return import_module(f"{__name__}.{name}")
