"""Runs and observes the harvester in Dagster: a run that is kept alive, assets, checks.

components   the component "an outbox": a few lines of YAML, or one call, define all parts below
settings     the fields of that YAML, with units and defaults
jobs         tags and pools of the jobs
fields       kinds of fields: described, relative paths, tags, connection strings
customize    changes that a project makes to the assets
config_check  the check of a configuration file when the definitions are loaded
resources    the harvester's configuration, read when it is needed
daemon       the run that harvests, and its reports
drain        the topics as assets: a run harvests until the outbox is empty
forwarded_logs  warnings of the harvester, in the log of a run
topic_reports  the events of topics: materializations with delivered records, and observations
topic_ledger   pure accounts of the records that are not materialized yet
topic_ends     the offsets at which topics end
topics_outside the events of topics whose harvester runs outside Dagster
deliveries   sensors and a condition that start runs for delivered records
heartbeat    the table of heartbeats that prove that a run is alive
daemon_runs  the daemon's runs, as Dagster stores them
decisions    pure functions: the next step that keeps a single run alive
leading      the shards that a run leads, as a tag of the run
supervisor   the sensor that takes the steps of `decisions`
assets       outbox, topics, audit tables
writer       the assets that a Spark job writes
frame_job    a user's function in Spark's process: its frames become batches of the outbox
outbox_state the present state of an outbox, and the verdicts on it; `outbox_report` reports it in the supervisor's tick
checks       assertions about them, with numbers
quality      contracts and expectations, imported when they are needed
alerts       the sensor that reports failed runs, failed checks and a missing daemon; `alert` is what it reports
pipes_main   a Spark job under Dagster Pipes: its log and its numbers come back
example_flights  the demo; a project of yours has its own definitions
"""
