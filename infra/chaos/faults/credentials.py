"""Faults of the harvesters' access to Postgres."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from infra.chaos.faults.fault import Fault
from infra.chaos.system import System
from infra.chaos.writing import Writing
from infra.log_lines import JsonLines
from infra.waiting import until

_DENIED = "database_access_denied"
_SAID_SECONDS = 60.0


@contextmanager
def _credentials_revoked(system: System, draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
    """Revoke the grants on all tables, change the password, or forbid the login. The last two also end sessions."""
    role = system.role
    revocations = (
        (role.revoke, role.grant),
        (role.change_password, role.restore_password),
        (role.lock_out, role.let_in),
    )
    take, give = draw.choice(revocations)
    system.await_leader()
    logs = [JsonLines(member.harvester.process.log) for member in system.members if member.harvester is not None]
    for each in logs:
        each.new()  # skips earlier lines
    take()
    try:
        until(
            lambda: any(line.get("event") == _DENIED for each in logs for line in each.new()),
            _SAID_SECONDS,
            "no harvester logs that Postgres refuses it",
            next_step="read the logs of the harvesters, beside the history",
        )
        yield
    finally:
        give()


FAULTS: Mapping[str, Fault] = {
    "credentials-revoked": Fault(
        promise="it waits for its rights with an error in the log, and continues with them", inject=_credentials_revoked
    ),
}
