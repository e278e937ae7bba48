"""Preflight checks before anything runs: configuration, Postgres, Kafka and clocks, all problems at once.

It reads, and changes nothing, but that a transactional id of its own is registered in Kafka where `delivery` is
`transactional`: there is no other way to learn whether that is allowed.
"""

from collections.abc import Collection

from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.preflight.certificates import check_certificates
from harvest_lib.harvester.preflight.kafka import check_kafka
from harvest_lib.harvester.preflight.postgres import check_postgres
from harvest_lib.harvester.preflight.report import Finding, Report

__all__ = ["Finding", "Report", "inspect"]


def inspect(config: HarvestConfig, topics: Collection[str] = ()) -> Report:
    """Return what a harvester of this configuration would find. `topics` are those it will deliver to, beside those
    that are named in the outbox and by its subscription."""
    report = Report()
    check_certificates(config, report)
    found = check_postgres(config, report)
    check_kafka(found.config or config, {*topics, *found.topics}, report, found.checks)
    return report
