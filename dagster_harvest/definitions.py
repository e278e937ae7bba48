"""Entry point for Dagster: `dagster dev -m dagster_harvest.definitions`. It only gathers the definitions of `defs/`."""

import warnings
from pathlib import Path

import dagster as dg

import dagster_harvest.defs


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of every outbox that has a folder in `defs/`."""
    with warnings.catch_warnings():
        # Dagster's loader warns of its own inner parts, at each use.
        warnings.simplefilter("ignore", dg.BetaWarning)
        warnings.simplefilter("ignore", dg.PreviewWarning)
        # From the module, not from a project's file: an installed package has none.
        tree = dg.ComponentTree.from_module(defs_module=dagster_harvest.defs, project_root=Path(__file__).parent.parent)
        folders = tree.build_defs()
    # A run is one process: the work is Spark's, or librdkafka's.
    return dg.Definitions.merge(folders, dg.Definitions(executor=dg.in_process_executor))
