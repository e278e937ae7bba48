"""Dagster runs the harvester and shows it: a run that is kept alive, assets, checks.

definitions  what Dagster loads; it only gathers `defs/`
components   "an outbox": a few lines of YAML become all of the below
settings     what those lines may say, with units and defaults
resources    the harvester's configuration, made when it is needed
daemon       the run that harvests, and what it tells
heartbeat    the rows by which a living run is known
decisions    pure: what has to be done so that one run lives
supervisor   the sensor that does it
assets       source data, outbox, topics, audit tables
checks       what is asserted of them, with the numbers
quality      contracts and expectations, imported when they are asked for
alerts       what failed, why, and the next step; what has recovered
pipes_main   a Spark job under Dagster Pipes: its log and its numbers come back
"""
