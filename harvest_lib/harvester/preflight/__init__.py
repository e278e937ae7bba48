"""Preflight checks before anything runs: configuration, Postgres, Kafka and clocks, all problems at once.

It reads, and changes nothing, except that `delivery: transactional` registers a transactional id of its own in Kafka:
there is no other way to check the right.
"""

from collections.abc import Collection

from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.preflight.certificates import check_certificates
from harvest_lib.harvester.preflight.kafka import check_kafka
from harvest_lib.harvester.preflight.postgres import check_postgres
from harvest_lib.harvester.preflight.report import Finding, Report

__all__ = ["Finding", "Report", "inspect"]


def inspect(config: HarvestConfig, topics: Collection[str] = ()) -> Report:
    """Return the findings for a harvester of this configuration. `topics` are checked together with the topics that the
    outbox and the subscription name."""
    report = Report()
    check_certificates(config, report)
    found = check_postgres(config, report)
    check_kafka(found.config or config, {*topics, *found.topics}, report, found.checks)
    return report
