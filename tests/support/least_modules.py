"""Which tests run under least privilege by `make test-least`, and why the others do not.

Every module of `tests/integration` and `tests/contract` is in one of these: a unit test checks it.
A test of its own, `module::test`, has a reason where the rest of its module runs.
"""

from pathlib import Path

_TESTS = Path(__file__).parents[1]

RUN = {
    "integration/delivery/test_parked_among_good",
    "integration/checkpoints/test_forged",
    "integration/cli/test_cli",
    "integration/cli/test_park",
    "integration/cli/test_subscriptions",
    "integration/harvester/test_concurrent_writers",
    "integration/consume/test_patterns",
    "integration/harvester/test_statement_counts_marking",
    "integration/harvester/test_statement_counts_batching",
    "integration/delivery/test_false_success",
    "integration/harvester/test_harvester",
    "integration/harvester/test_hold_back",
    "integration/delivery/test_hostile_rows",
    "integration/harvester/test_mapped_table",
    "integration/outbox/test_native_table",
    "integration/harvester/test_outages",
    "integration/harvester/test_progress",
    "integration/leadership/test_postgres",
    "integration/subscriptions/test_resharding",
    "integration/harvester/test_revoked_rights",
    "integration/harvester/test_secured",
    "integration/harvester/test_secured_refusals",
    "integration/delivery/test_sequenced",
    "integration/outbox/test_parked_ids",
    "integration/subscriptions/test_subscriptions",
    "integration/delivery/test_recreated_topic",
    "integration/harvester/test_versions",
}
"""Harvesters run in these, each under exactly what is printed for it, in Postgres and in Kafka."""

IN_POSTGRES_ALONE = {
    "integration/delivery/test_false_success": "its broker is reached by a way that breaks, which knows no users",
}
"""Of those that run: why their harvesters may do everything in Kafka."""

_CONSUMER = "its subject is a consumer; those run under what is printed for them in consume/test_privileges"
_DAGSTER = "Dagster's runs keep a table of their own beside the outbox, which is the owner's work"
_NAMES = "its subject is how things are called and written down, for whoever harvests"
_PART = "its subject is one part, and no harvester runs"
_PIPELINE = "its subject is the ends of a pipeline, and no harvester runs"
_SERVERS = "its subject is the servers of the stack or the way to them, and no harvester runs"
_SINK = "its subject is a writer: Spark, or a table that it writes to"
_TWO = "its subject is what hands records over, whoever they are read as"
_SPARK_AUDIT = "its subject is the audit by Spark, which keeps a schema of its own: the owner's work"
_SPARK_READER = "its subject is Spark that reads, and no harvester is limited"

EXEMPT = {
    "contract/test_delivery": _PART,
    "integration/spark/test_replay": "its subject is Spark, by the owner, and the harvester that goes on from there",
    "integration/native/test_hand_over": _PART,
    "integration/native/test_messages": _PART,
    "integration/native/test_topic_writer": _PART,
    "integration/native/test_equality": _TWO,
    "integration/native/test_bad_input": _TWO,
    "integration/native/test_interrupted": _TWO,
    "integration/native/test_sanitizers": _TWO,
    "integration/chaos/test_recording_native": _TWO,
    "integration/native/test_marked": _PART,
    "integration/native/test_sources": _PART,
    "integration/native/test_unavailable": _PART,
    "integration/harvester/test_transactions": "its broker begins no transaction, so that no harvester starts",
    "integration/examples/test_walkthrough": "its subject is what a new user types, who grants what is printed",
    "integration/cli/test_check": "its subject is what is wrong before a harvester runs",
    "contract/test_leadership": _PART,
    "contract/test_old_artefacts": _NAMES,
    "contract/test_batch_source": _PART,
    "contract/test_pipeline_reader": _PIPELINE,
    "contract/test_pipeline_writer": _PIPELINE,
    "contract/test_public_formats": _NAMES,
    "contract/test_public_names": _NAMES,
    "contract/test_claim_source": _PART,
    "integration/delivery/test_abandon": _PART,
    "integration/airflow/test_dags": "its subject is Airflow, and the server that it asks stands in for Dagster",
    "integration/airflow/test_first_dag": _SERVERS,
    "integration/airflow/test_provider": "its subject is Airflow, and the server that it asks stands in for Dagster",
    "integration/outbox/test_checks": "its subject is who writes, and what a mark does to rows that are there",
    "integration/grants/test_roles": "its subject is the script itself, for roles of its own",
    "integration/harvester/test_row_security": "its harvesters are limited on a stack of their own",
    "integration/harvester/test_added_partitions": "its subject is a topic that people change: the owner's work",
    "integration/outbox/test_append": "its subject is who writes, and no harvester runs",
    "integration/benchmarks/test_approaches": "its subject is queries that a harvester does not use",
    "integration/audit/test_audit": "its subject is the audit, which only reads; harvester/test_secured runs it",
    "integration/benchmarks/test_bench": "the benchmarks make tables of their own and measure them, as their owner",
    "integration/benchmarks/test_compare": "the comparison makes tables of its own and measures them, as their owner",
    "integration/chaos/test_backlog": _SERVERS,
    "integration/local_stack/test_taken_ports": _SERVERS,
    "integration/local_stack/test_bad_circumstances": _SERVERS,
    "integration/spark/test_path": "its subject is Spark, before and after a harvester that the owner runs",
    "integration/chaos/test_link": _SERVERS,
    "integration/local_stack/test_prometheus": _SERVERS,
    "integration/checkpoints/test_topic": _PART,
    "integration/grants/test_compose_roles": "its subject is the roles of the compose file, in a Postgres of its own",
    "integration/consume/test_group_application": _CONSUMER,
    "integration/consume/test_bounds": _CONSUMER,
    "integration/consume/test_fence": _CONSUMER,
    "integration/consume/test_group": _CONSUMER,
    "integration/consume/test_log": _CONSUMER,
    "integration/consume/test_privileges": "its subject is a consumer, always under what is printed for it",
    "integration/consume/test_recovery_log": _CONSUMER,
    "integration/consume/test_retention": _CONSUMER,
    "integration/consume/test_shard": _CONSUMER,
    "integration/consume/test_shard_trouble": _CONSUMER,
    "integration/consume/test_sqlite": _CONSUMER,
    "integration/consume/test_sqlite_shard": _CONSUMER,
    "integration/consume/test_sqlite_statements": _CONSUMER,
    "integration/dagster/test_audit": _DAGSTER,
    "integration/dagster/test_project": _DAGSTER,
    "integration/dagster/test_checks": _DAGSTER,
    "integration/dagster/test_archive": _DAGSTER,
    "integration/dagster/test_commands": _DAGSTER,
    "integration/dagster/test_replay": _DAGSTER,
    "integration/dagster/test_scaffold": _DAGSTER,
    "integration/dagster/test_daemon": _DAGSTER,
    "integration/dagster/test_killed": _DAGSTER,
    "integration/dagster/test_spark": _DAGSTER,
    "integration/dagster/test_supervisor": _DAGSTER,
    "integration/delivery/test_frozen_broker": _PART,
    "integration/delivery/test_lane": _PART,
    "integration/delivery/test_partitioners": _PART,
    "integration/delivery/test_rejections": _PART,
    "integration/outbox/test_detached_segments": "its subject is detaching segments, which is the owner's work",
    "integration/harvester/test_encodings": "the stack's roles have no grants in its databases",
    "integration/examples/test_examples": "the examples make their tables themselves, as their owner",
    "integration/local_stack/test_fixtures": _SERVERS,
    "integration/spark/test_flights_to_outbox": _SINK,
    "integration/local_stack/test_local_stack": _SERVERS,
    "integration/local_stack/test_wheel": _SERVERS,
    "integration/source/test_mark": _PART,
    "integration/native/test_traceparents": _PART,
    "integration/cli/test_opentelemetry": "its subject is what is reported, and none of a harvester's rights",
    "integration/harvester/test_tracing": "its subject is what is reported, and none of a harvester's rights",
    "integration/cli/test_listen": "its subject is what is served, and none of a harvester's rights",
    "integration/consume/test_telemetry": _CONSUMER,
    "integration/consume/test_tracing": _CONSUMER,
    "integration/harvester/test_metrics": "it forges checkpoints and parked records, and closes the database to all",
    "integration/harvester/test_liveness": "its subject is what supervisors are told, and none of its rights",
    "integration/harvester/test_run_image": "its subject is an image, whose harvester runs as its user does",
    "integration/harvester/test_memory": "its processes are measured from the outside, as their owner's",
    "integration/outbox/test_migrate": "its subject is moving a table, which is the owner's work",
    "integration/subscriptions/test_moving": "its subject is moving a table to another server: the owner's work",
    "integration/leadership/test_last_leaders": _PART,
    "integration/leadership/test_neli": _PART,
    "integration/leadership/test_kafka_probe": _PART,
    "integration/leadership/test_neli_network": "its broker is reached by a way that breaks, which knows no users",
    "integration/leadership/test_neli_shards": _PART,
    "integration/checkpoints/test_outbox_identity": "its tables are moved between schemas: the owner's work",
    "integration/spark/test_data_source_faults": _SINK,
    "integration/spark/test_data_source_refusals": _SINK,
    "integration/spark/test_data_source_writing": _SINK,
    "integration/spark/test_named_attempts": _SINK,
    "integration/spark/test_outbox_sink": _SINK,
    "integration/spark/test_outbox_sink_command": _SINK,
    "integration/spark/test_outbox_sink_faults": _SINK,
    "integration/spark/test_outbox_sink_refusals": _SINK,
    "integration/spark/test_outbox_sink_staging": _SINK,
    "integration/spark/test_outbox_sink_streams": _SINK,
    "integration/spark/test_sink_counts": _SINK,
    "integration/spark/test_through_driver": _SINK,
    "integration/source/test_query_plans": _PART,
    "integration/outbox/test_parked": "its subject is people who resolve parked records, who are best the owner",
    "integration/pipeline/test_kafka": _PIPELINE,
    "integration/pipeline/test_outbox": _PIPELINE,
    "integration/pipeline/test_postgres": _PIPELINE,
    "integration/pipeline/test_postgres_refusals": _PIPELINE,
    "integration/local_stack/test_platform_up": _SERVERS,
    "integration/harvester/test_pooler": _SERVERS,
    "integration/outbox/test_load_generator": "its subject is a writer, and no harvester runs",
    "integration/delivery/test_rejected_records": "delivery/test_parked_among_good parks under what is printed",
    "integration/outbox/test_archive": "its subject is dropping segments, which is the owner's work",
    "integration/outbox/test_segments": "its subject is making and dropping segments, which is the owner's work",
    "integration/outbox/test_segment_rotation": "its subject is leaving segments, which is the owner's work",
    "integration/outbox/test_table_visibility": "its subject is a question to the catalog, and no harvester runs",
    "integration/spark/test_archived": "its subject is what Spark reads, and no harvester runs",
    "integration/spark/test_jars": "its subject is what is downloaded, and no harvester runs",
    "integration/spark/test_declarative_pipeline": _SINK,
    "integration/spark/test_local_cluster": _SINK,
    "integration/spark/test_audit": _SPARK_AUDIT,
    "integration/spark/test_audit_comparison": _SPARK_AUDIT,
    "integration/spark/test_audit_encodings": _SPARK_AUDIT,
    "integration/spark/test_audit_incremental": _SPARK_AUDIT,
    "integration/spark/test_audit_refusals": _SPARK_AUDIT,
    "integration/spark/test_audit_results": _SPARK_AUDIT,
    "integration/spark/test_audit_row_security": _SPARK_AUDIT,
    "integration/spark/test_contracts": _SINK,
    "integration/spark/test_harvested": _SPARK_READER,
    "integration/spark/test_outbox_connect": _SPARK_READER,
    "integration/spark/test_outbox_reader": _SPARK_READER,
    "integration/spark/test_outbox_stream_reader": _SPARK_READER,
    "integration/spark/test_reading_page": _SPARK_READER,
    "integration/spark/test_snapshot_option": _SPARK_READER,
    "integration/harvester/test_start_errors": "its subject is other users, and servers that are not there",
    "integration/harvester/test_status": "its subject is the command that looks, on servers of its own",
    "integration/subscriptions/test_lock": _PART,
    "integration/harvester/test_two_pools": "its subject is two pools that differ in more than their roles",
    "integration/harvester/test_upgrade": "its subject is two pools that differ in more than their roles",
}
"""Why the rest does not run."""


def module_of(path):
    """Return the name of a test module as it stands above."""
    return path.relative_to(_TESTS).with_suffix("").as_posix()


def reason(path, test=""):
    """Return why a test does not run under least privilege; empty if it does. `test` is the name of its function."""
    module = module_of(path)
    return EXEMPT.get(module) or EXEMPT.get(f"{module}::{test}", "")
