"""The harvester: it takes part in elections, runs the engine that fits its configuration, and reports its state."""
