"""Preflight checks for a harvester: configuration, Postgres, Kafka and clocks. They report all problems at once.

The checks change nothing, with a single exception: for `delivery: transactional`, they register a separate
transactional id in Kafka. There is no other way to check the right to use transactions.
"""

import time
from collections.abc import Collection
from datetime import UTC, datetime

from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.assembly.factory import certificates_of
from harvest_lib.harvester.preflight.kafka import check_kafka
from harvest_lib.harvester.preflight.postgres import check_postgres
from harvest_lib.harvester.preflight.report import Finding, Report

__all__ = ["Finding", "Report", "inspect"]


def inspect(config: HarvestConfig, topics: Collection[str] = (), *, in_dagster: bool = False) -> Report:
    """Run all checks for a harvester with this configuration, and return the report. `topics` are checked in addition
    to the topics of the outbox's records and the topics of the subscription. `in_dagster`: the role also keeps a run of
    Dagster alive, and audits there."""
    report = Report()
    _check_certificates(config, report)
    found = check_postgres(config, report, in_dagster=in_dagster)
    check_kafka(found.config or config, {*topics, *found.topics}, report, found.checks)
    return report


def _check_certificates(config: HarvestConfig, report: Report) -> None:
    """Warn of certificates that expire soon or have expired. This is only a warning: the servers decide whether to
    refuse an expired certificate."""
    certificates, now = certificates_of(config), time.time()
    expiring = certificates.expiring(now)
    for setting in certificates.expiries():
        if setting not in expiring:
            report.passed.append(("configuration", f"the certificate of {setting}"))
            continue
        at = datetime.fromtimestamp(expiring[setting], UTC).isoformat(timespec="seconds")
        state = "has expired" if expiring[setting] <= now else "expires soon"
        report.warn(
            "configuration",
            f"the certificate of `{setting}` {state}",
            evidence=f"it is valid until {at}",
            next_step="put a new one into the file, and restart the processes that read it",
        )
