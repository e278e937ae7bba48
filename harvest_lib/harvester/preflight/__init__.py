"""Preflight checks before anything runs: configuration, Postgres, Kafka and clocks, all problems at once.

It reads, and changes nothing, except that `delivery: transactional` registers a transactional id of its own in Kafka:
there is no other way to check the right.
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


def inspect(config: HarvestConfig, topics: Collection[str] = ()) -> Report:
    """Return the findings for a harvester of this configuration. `topics` are checked together with the topics that the
    outbox and the subscription name."""
    report = Report()
    _check_certificates(config, report)
    found = check_postgres(config, report)
    check_kafka(found.config or config, {*topics, *found.topics}, report, found.checks)
    return report


def _check_certificates(config: HarvestConfig, report: Report) -> None:
    """Warn of certificates that expire soon or have expired; whether an expired certificate is refused, servers
    decide."""
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
