"""The harvester: takes part in leader elections, delivers records while it leads, and reports its state."""
