"""What an operator does about records that harvesters cannot send."""

from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from infra.chaos.commands import harvest
from infra.chaos.member import Member
from infra.chaos.system import System, Way
from infra.local.process import tail

_COUNT = SQL("SELECT count(*) FROM {table} WHERE NOT held OR %s")
_STOPPED = "can never be sent"


def sets_aside(way: Way) -> bool:
    """Tell whether what cannot be sent is set aside, or harvesters stop over it."""
    return not (way.source == "mark" and way.exactly_once)


def count(system: System, connection: psycopg.Connection[Any], *, held: bool = False) -> int:
    """Count the records that are parked, or also those `held` behind one."""
    table = "outbox_parked" if system.way.source == "mark" else "outbox_set_aside"
    row = connection.execute(_COUNT.format(table=Identifier(table)), (held,)).fetchone()
    return int(row[0]) if row is not None else 0


def retry_all(system: System) -> None:
    """Have all sent again that is parked."""
    harvest("park", "retry", "--all", "-f", system.operator_config())


def has_stopped(member: Member) -> bool:
    """Tell whether its harvester has ended over a record."""
    return not member.is_up and member.harvester is not None and _STOPPED in tail(member.harvester.process.log)


def is_stopping(member: Member) -> bool:
    """Tell whether its harvester ends over a record, and has not yet."""
    return member.is_up and member.harvester is not None and _STOPPED in tail(member.harvester.process.log)
