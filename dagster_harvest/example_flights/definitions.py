"""The example's definitions, gathered from `defs/`: `dagster dev -m dagster_harvest.example_flights.definitions`.

The example writes flights into its outbox, so it refuses the configuration file of another outbox.
"""

import os
import warnings
from pathlib import Path

import dagster as dg

from dagster_harvest.example_flights import defs as folders_of_definitions
from dagster_harvest.resources import CONFIG_VARIABLE
from harvest_lib.errors import ConfigError


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the example's outbox. Raises ConfigError if HARVEST_CONFIG names a file."""
    if file := os.environ.get(CONFIG_VARIABLE):
        raise ConfigError(
            f"the example would write flights into the outbox of {file}",
            field=CONFIG_VARIABLE,
            next_step="serve the definitions of your project, as `dg dev` does there; or, for the example, unset "
            "HARVEST_CONFIG and name an empty outbox by HARVEST_DSN",
        )
    with warnings.catch_warnings():
        # Dagster's loader warns of its own inner parts, at each use.
        warnings.simplefilter("ignore", dg.BetaWarning)
        warnings.simplefilter("ignore", dg.PreviewWarning)
        # Found by the module, not by a project's file, because an installed package has no such file.
        tree = dg.ComponentTree.from_module(defs_module=folders_of_definitions, project_root=Path(__file__).parents[2])
        folders = tree.build_defs()
    # A run is a single process, because Spark or librdkafka does the work.
    return dg.Definitions.merge(folders, dg.Definitions(executor=dg.in_process_executor))
