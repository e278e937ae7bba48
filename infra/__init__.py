"""What the harvester needs around it: servers for a machine that has none."""
