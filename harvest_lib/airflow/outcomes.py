"""The outcome of a wait, as a trigger hands it to its operator: a mapping of texts.

The key `outcome` is `succeeded`, with further keys. Or it is `failed`, `late` at the end of the given time, or
`refused` if no retry changes it; each has the keys `cause`, `evidence` and `next_step`.
"""

from harvest_lib.errors import ConfigError, DatabaseAccessDenied, HarvestError, OutboxTableError

SUCCEEDED, FAILED, LATE, REFUSED = "succeeded", "failed", "late", "refused"
PERMANENT: tuple[type[HarvestError], ...] = (ConfigError, DatabaseAccessDenied, OutboxTableError)
"""Errors that another try would find again."""


def failure(error: HarvestError, *permanent: type[HarvestError]) -> dict[str, str]:
    """Return the outcome for an error. `permanent` are further types that no retry changes."""
    parts = {"cause": error.cause, "evidence": error.evidence, "next_step": error.next_step}
    return {"outcome": REFUSED if isinstance(error, PERMANENT + permanent) else FAILED, **parts}
