"""The faults that can be injected into the system, each with the promise that holds during it."""

from collections.abc import Mapping

from infra.chaos.faults import (
    brokers,
    clocks,
    coordinators,
    credentials,
    disks,
    failover,
    harvesters,
    links,
    networks,
    postgres,
    records,
    topics,
)
from infra.chaos.faults.fault import Fault, Injection

__all__ = ["FAULTS", "Fault", "Injection", "missing"]

FAULTS: Mapping[str, Fault] = {
    **harvesters.FAULTS,
    **clocks.FAULTS,
    **links.FAULTS,
    **networks.FAULTS,
    **brokers.FAULTS,
    **coordinators.FAULTS,
    **postgres.FAULTS,
    **credentials.FAULTS,
    **failover.FAULTS,
    **disks.FAULTS,
    **records.FAULTS,
    **topics.FAULTS,
}
"""All faults by name; `--faults` takes these names."""


def missing(brokers: int) -> dict[str, str]:
    """Return the faults for which this machine lacks a requirement, each with the missing requirement. Faults that need
    more than this number of brokers are left out."""
    said = {name: fault.needs() for name, fault in FAULTS.items() if fault.brokers <= brokers}
    return {name: sentence for name, sentence in said.items() if sentence is not None}
