"""Which tests run under least privilege by `make test-least`, and why the others do not.

Every module of `tests/integration` and `tests/contract` is in one of these; `tests/unit/test_least_modules.py` sees to
it. A test of its own, `module::test`, has a reason where the rest of its module runs.
"""

RUN = {
    "integration/test_bad_records",
    "integration/test_checkpoint_forged",
    "integration/test_cli",
    "integration/test_cli_park",
    "integration/test_cli_subscriptions",
    "integration/test_concurrent_writers",
    "integration/test_consume_patterns",
    "integration/test_counts",
    "integration/test_counts_laps",
    "integration/test_false_success",
    "integration/test_harvester",
    "integration/test_hold_back",
    "integration/test_hostile_rows",
    "integration/test_mapped_table",
    "integration/test_native_table",
    "integration/test_outages",
    "integration/test_postgres_leadership",
    "integration/test_resharding",
    "integration/test_revoked",
    "integration/test_secure",
    "integration/test_secure_refusals",
    "integration/test_sequenced",
    "integration/test_set_aside",
    "integration/test_subscriptions",
    "integration/test_topic_made_again",
    "integration/test_versions",
}
"""Harvesters run in these, each under exactly what is printed for it, in Postgres and in Kafka."""

IN_POSTGRES_ALONE = {
    "integration/test_false_success": "its broker is reached by a way that breaks, which knows no users",
}
"""Of those that run: why their harvesters may do everything in Kafka."""

_CONSUMER = "its subject is a consumer; those run under what is printed for them in test_consume_privileges"
_DAGSTER = "Dagster's runs keep a table of their own beside the outbox, which is the owner's work"
_NAMES = "its subject is how things are called and written down, for whoever harvests"
_PART = "its subject is one part, and no harvester runs"
_PIPELINE = "its subject is the ends of a pipeline, and no harvester runs"
_SERVERS = "its subject is the servers of the stack or the way to them, and no harvester runs"
_SINK = "its subject is a writer: Spark, or a table that it writes to"
_SPARK_AUDIT = "its subject is the audit by Spark, which keeps a schema of its own: the owner's work"

EXEMPT = {
    "contract/test_delivery": _PART,
    "contract/test_leadership": _PART,
    "contract/test_old_artefacts": _NAMES,
    "contract/test_paged_source": _PART,
    "contract/test_pipeline_reader": _PIPELINE,
    "contract/test_pipeline_writer": _PIPELINE,
    "contract/test_public_formats": _NAMES,
    "contract/test_public_names": _NAMES,
    "contract/test_source": _PART,
    "integration/test_abandon": _PART,
    "integration/test_airflow_dags": "its subject is Airflow, and the server that it asks stands in for Dagster",
    "integration/test_checks": "its subject is who writes, and what a mark does to rows that are there",
    "integration/test_grants_roles": "its subject is the script itself, for roles of its own",
    "integration/test_row_security": "its harvesters are limited on a stack of their own, and policies are its subject",
    "integration/test_added_partitions": "its subject is a topic that people change, which is the owner's work",
    "integration/test_append": "its subject is who writes, and no harvester runs",
    "integration/test_approaches": "its subject is queries that a harvester does not use",
    "integration/test_audit": "its subject is the audit, which reads; as a reader it runs in test_secure",
    "integration/test_bench": "the benchmarks make tables of their own and measure them, as their owner",
    "integration/test_chaos_link": _SERVERS,
    "integration/test_checkpoint_topic": _PART,
    "integration/test_compose_roles": "its subject are the roles of the compose file, in a Postgres of their own",
    "integration/test_consume_at_once": _CONSUMER,
    "integration/test_consume_bounds": _CONSUMER,
    "integration/test_consume_fence": _CONSUMER,
    "integration/test_consume_group": _CONSUMER,
    "integration/test_consume_log": _CONSUMER,
    "integration/test_consume_privileges": "its subject is a consumer, always under what is printed for it",
    "integration/test_consume_recovery_log": _CONSUMER,
    "integration/test_consume_shard": _CONSUMER,
    "integration/test_consume_shard_trouble": _CONSUMER,
    "integration/test_consume_sqlite": _CONSUMER,
    "integration/test_consume_sqlite_shard": _CONSUMER,
    "integration/test_consume_sqlite_statements": _CONSUMER,
    "integration/test_dagster_audit": _DAGSTER,
    "integration/test_dagster_project": _DAGSTER,
    "integration/test_dagster_checks": _DAGSTER,
    "integration/test_dagster_commands": _DAGSTER,
    "integration/test_dagster_daemon": _DAGSTER,
    "integration/test_dagster_killed": _DAGSTER,
    "integration/test_dagster_spark": _DAGSTER,
    "integration/test_dagster_supervisor": _DAGSTER,
    "integration/test_delivery": _PART,
    "integration/test_delivery_refusals": _PART,
    "integration/test_detached_segments": "its subject is detaching segments, which is the owner's work",
    "integration/test_encodings": "its databases are of encodings of their own, where the stack's roles have no grants",
    "integration/test_examples": "the examples make their tables themselves, as their owner",
    "integration/test_fixtures": _SERVERS,
    "integration/test_flights_to_outbox": _SINK,
    "integration/test_local_stack": _SERVERS,
    "integration/test_mark_source": _PART,
    "integration/test_memory": "its processes are measured from the outside, as their owner's",
    "integration/test_migrate": "its subject is moving a table, which is the owner's work",
    "integration/test_moving": "its subject is moving a table to another server, which is the owner's work",
    "integration/test_neli": _PART,
    "integration/test_neli_network": _PART,
    "integration/test_neli_shards": _PART,
    "integration/test_outbox_identity": "its tables are moved about between schemas, which is the owner's work",
    "integration/test_outbox_sink": _SINK,
    "integration/test_outbox_sink_command": _SINK,
    "integration/test_outbox_sink_faults": _SINK,
    "integration/test_outbox_sink_refusals": _SINK,
    "integration/test_outbox_sink_staging": _SINK,
    "integration/test_outbox_sink_streams": _SINK,
    "integration/test_paged_plans": _PART,
    "integration/test_parked": "its subject is people who resolve parked records, who are best the owner",
    "integration/test_pipeline_kafka": _PIPELINE,
    "integration/test_pipeline_outbox": _PIPELINE,
    "integration/test_pipeline_postgres": _PIPELINE,
    "integration/test_pipeline_postgres_refusals": _PIPELINE,
    "integration/test_platform_up": _SERVERS,
    "integration/test_pooler": _SERVERS,
    "integration/test_pump": "its subject is a writer, and no harvester runs",
    "integration/test_refusals": "test_bad_records and test_secure_refusals park under what is printed",
    "integration/test_segments": "its subject is making and dropping segments, which is the owner's work",
    "integration/test_spark_audit": _SPARK_AUDIT,
    "integration/test_spark_audit_comparison": _SPARK_AUDIT,
    "integration/test_spark_audit_encodings": _SPARK_AUDIT,
    "integration/test_spark_audit_refusals": _SPARK_AUDIT,
    "integration/test_spark_audit_results": _SPARK_AUDIT,
    "integration/test_spark_audit_row_security": _SPARK_AUDIT,
    "integration/test_spark_contracts": _SINK,
    "integration/test_start_errors": "its subject is other users, and servers that are not there",
    "integration/test_status": "its subject is the command that looks, on servers of its own",
    "integration/test_subscription_lock": _PART,
    "integration/test_two_pools": "its subject is two pools that differ in more than their roles",
}
"""Why the rest does not run."""


def module_of(path):
    """Return the name of a test module as it stands above."""
    return f"{path.parent.name}/{path.stem}"


def reason(path, test=""):
    """Return why a test does not run under least privilege; empty if it does. `test` is the name of its function."""
    module = module_of(path)
    return EXEMPT.get(module) or EXEMPT.get(f"{module}::{test}", "")
