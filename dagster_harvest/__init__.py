"""Runs and observes the harvester in Dagster: a run that is kept alive, assets, checks.

components   the component "an outbox": a few lines of YAML, or one call, define all parts below
settings     the fields of that YAML, with units and defaults
jobs         tags and pools of the jobs
fields       kinds of fields: described, relative paths, tags, connection strings
customize    changes that a project makes to the assets
config_check  the check of a configuration file when the definitions are loaded
resources    the harvester's configuration, read when it is needed
daemon       the run that harvests, and its reports
heartbeat    the table of heartbeats that prove that a run is alive
decisions    pure functions: the next step that keeps a single run alive
supervisor   the sensor that takes the steps of `decisions`
assets       source data, outbox, topics, audit tables
checks       assertions about them, with numbers
quality      contracts and expectations, imported when they are needed
alerts       failures with cause and next step, and recoveries
pipes_main   a Spark job under Dagster Pipes: its log and its numbers come back
example_flights  the demo; a project of yours has its own definitions
"""
