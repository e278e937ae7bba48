"""Runs and observes the harvester in Dagster: a run that is kept alive, assets, checks.

components   the component "an outbox": a few lines of YAML, or one call, define all parts below
settings     the fields of that YAML, with units and defaults
resources    the harvester's configuration, read when it is needed
daemon       the run that harvests, and its reports
heartbeat    the table of heartbeats that prove that a run is alive
decisions    pure functions: the next step that keeps a single run alive
leading      the shards that a run leads, as a tag of the run
supervisor   the sensor that takes the steps of `decisions`
outbox_state the present state of an outbox, and the verdicts on it; `outbox_report` reports it in the supervisor's tick
assets       source data, outbox, topics, audit tables
checks       assertions about them, with numbers
quality      contracts and expectations, imported when they are needed
alerts       the sensor that reports failed runs, failed checks and a missing daemon; `alert` is what it reports
pipes_main   a Spark job under Dagster Pipes: its log and its numbers come back
example_flights  the demo; a project of yours has its own definitions
"""
