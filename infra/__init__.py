"""Surroundings of the harvester: servers for a machine that has none."""
