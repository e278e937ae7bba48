"""Which modules run by `make test-faults` and not by `make test`: kills, outages, bad input among good, and slow parts.

`make test` is what a newcomer types: at most a quarter of an hour on two cores. Every change has to pass both.
"""

from pathlib import Path

_TESTS = Path(__file__).parents[1]

FOLDERS = ("adversary", "chaos")
"""All of these."""

MODULES = {
    "integration/checkpoints/test_forged",
    "integration/checkpoints/test_outbox_identity",
    "integration/cli/test_park",
    "integration/consume/test_shard_trouble",
    "integration/dagster/test_killed",
    "integration/dagster/test_spark",
    "integration/delivery/test_false_success",
    "integration/delivery/test_hostile_rows",
    "integration/delivery/test_parked_among_good",
    "integration/delivery/test_recreated_topic",
    "integration/delivery/test_rejected_records",
    "integration/harvester/test_concurrent_writers",
    "integration/harvester/test_memory",
    "integration/harvester/test_outages",
    "integration/harvester/test_revoked_rights",
    "integration/harvester/test_row_security",
    "integration/harvester/test_secured_refusals",
    "integration/harvester/test_two_pools",
    "integration/harvester/test_upgrade",
    "integration/harvester/test_versions",
    "integration/leadership/test_neli_network",
    "integration/local_stack/test_local_stack",
    "integration/outbox/test_migrate",
    "integration/outbox/test_parked_ids",
    "integration/spark/test_audit_refusals",
    "integration/spark/test_audit_results",
    "integration/spark/test_contracts",
    "integration/spark/test_data_source_faults",
    "integration/spark/test_data_source_refusals",
    "integration/spark/test_data_source_writing",
    "integration/spark/test_declarative_pipeline",
    "integration/spark/test_flights_to_outbox",
    "integration/spark/test_harvested",
    "integration/spark/test_local_cluster",
    "integration/spark/test_outbox_connect",
    "integration/spark/test_outbox_sink_command",
    "integration/spark/test_outbox_sink_faults",
    "integration/spark/test_outbox_stream_reader",
    "integration/spark/test_replay",
    "integration/spark/test_reading_page",
    "integration/spark/test_through_driver",
    "integration/subscriptions/test_moving",
    "integration/subscriptions/test_resharding",
    "property/test_moving",
    "property/test_outbox_identity",
    "property/test_pipeline_kills",
    "unit/repository/test_empty_sessions",
    "unit/repository/test_site",
}


def is_of_faults(path: Path) -> bool:
    """Tell whether a test module runs by `make test-faults`."""
    if not path.is_relative_to(_TESTS):
        return False
    module = path.relative_to(_TESTS).with_suffix("")
    return module.parts[0] in FOLDERS or module.as_posix() in MODULES
