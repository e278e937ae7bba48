"""Faults of the system, each with the promise that is kept through it."""

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
"""By their names, as `--faults` takes them."""


def missing(brokers: int) -> dict[str, str]:
    """Return the faults that the brokers suffice for and this machine does not, each with its missing requirement."""
    said = {name: fault.needs() for name, fault in FAULTS.items() if fault.brokers <= brokers}
    return {name: sentence for name, sentence in said.items() if sentence is not None}
