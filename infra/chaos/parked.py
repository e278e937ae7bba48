"""What an operator does about records that harvesters cannot send."""

from typing import Any

import psycopg
from psycopg.sql import SQL

from harvest_lib.local_stack.process import tail
from infra.chaos.commands import harvest
from infra.chaos.member import Member
from infra.chaos.system import Mode, System

_PARKED = SQL("SELECT count(*) FROM outbox_parked WHERE NOT held")
_SET_ASIDE = SQL("SELECT count(*) FROM outbox_set_aside WHERE NOT held AND NOT retry")
_STOPPED = "can never be sent"


def sets_aside(way: Mode) -> bool:
    """Tell whether what cannot be sent is set aside, or harvesters stop over it."""
    return not (way.source == "mark" and way.exactly_once)


def count(way: Mode, connection: psycopg.Connection[Any]) -> int:
    """Count the records that are parked, and of which nobody has asked yet that they be sent again."""
    row = connection.execute(_PARKED if way.source == "mark" else _SET_ASIDE).fetchone()
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
