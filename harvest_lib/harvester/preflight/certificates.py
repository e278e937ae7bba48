"""Preflight check that the certificates in the configured files do not expire soon."""

import time
from datetime import UTC, datetime

from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.assembly.factory import certificates_of
from harvest_lib.harvester.preflight.report import Report


def check_certificates(config: HarvestConfig, report: Report) -> None:
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
