"""The server behind a connection: whether it is the one a position came from, and still has all that came before it.

After a failover to an asynchronous standby, or a restore, ids of transactions and of records that were read come again
with other content. A reader that went on would skip them, silently. So each position carries the server's identity, its
timeline and a place in its log (LSN) that was on disk; and each connection is checked against it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as pg

from harvest_lib.database import translate, translated
from harvest_lib.errors import DatabaseUnavailable, ServerRegressed

_WHERE = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), pg_current_wal_flush_lsn()::text
"""

_TIMELINE = "SELECT CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END"

_IN_RECOVERY = "SELECT pg_is_in_recovery()"

# Flushes everything before it, whatever `synchronous_commit` its writers had; 0.1 ms, and no privilege.
_BARRIER = "SELECT pg_logical_emit_message(true, 'harvest', '')::text"

FLUSHED_UP_TO = """
CASE WHEN NOT pg_is_in_recovery() AND current_setting('synchronous_standby_names') = '' THEN (
  SELECT CASE WHEN pg_current_wal_flush_lsn() >= written.lsn THEN written.lsn::text END
  FROM (SELECT pg_current_wal_insert_lsn() AS lsn OFFSET 0) AS written
) END
"""
"""Expression by which a statement learns that all its snapshot sees is on disk already: the LSN up to which the log
was written when it ran, if the log was flushed as far; else NULL. The end of a transaction is in the log before the
transaction counts as ended, so a barrier would flush nothing more. Only a barrier waits for a standby that has to
confirm.
"""

_HISTORY = "SELECT pg_read_file('pg_wal/' || %s || '.history')"

_LACKS_GRANT = "SELECT quote_ident(current_user) WHERE NOT has_function_privilege('pg_read_file(text)', 'EXECUTE')"

_REMEDY = (
    "compare Kafka with the outbox (`harvest audit`), then anchor the subscription again: "
    "`harvest subscriptions rewind {name} --to mirror|beginning|now|SNAPSHOT`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in the log of one server: its system identifier, timeline (8 hex digits) and LSN."""

    system: str
    timeline: str
    lsn: str

    def as_json(self) -> dict[str, str]:
        return {"system": self.system, "timeline": self.timeline, "lsn": self.lsn}


def require_primary(connection: psycopg.Connection[Any]) -> None:
    """Raise DatabaseUnavailable on a standby: its snapshots list nothing as in progress."""
    with translated():
        row = connection.execute(_IN_RECOVERY).fetchone()
    if row is None or row[0]:
        raise standby()


def standby() -> DatabaseUnavailable:
    """Return the error of a connection that leads to a standby."""
    return DatabaseUnavailable(
        "the server is a standby",
        evidence="pg_is_in_recovery() is true",
        next_step="name the primary in `dataSource`, or all servers: the one that takes writes is found",
    )


def place(connection: psycopg.Connection[Any]) -> Place:
    """Return where the server's log is on disk now."""
    with translated():
        row = connection.execute(_WHERE).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    return Place(system=row[0], timeline=row[1], lsn=row[2])


def timeline(connection: psycopg.Connection[Any]) -> str | None:
    """Return the server's timeline, 8 hex digits; None on a standby."""
    with translated():
        row = connection.execute(_TIMELINE).fetchone()
    return row[0] if row is not None else None


def barrier(connection: psycopg.Connection[Any]) -> str:
    """Commit a record to the log and return its LSN: all that was visible before is on disk when this returns."""
    with translated():
        row = connection.execute(_BARRIER, prepare=True).fetchone()
    assert row is not None  # noqa: S101 - as above
    return str(row[0])


def check(connection: psycopg.Connection[Any], before: Mapping[str, str], subscription: str) -> Place:
    """Compare the server with the place of a position and return where it is now.

    Raises ServerRegressed when it may lack records behind the position: another cluster, a log that ends before the
    place, or a timeline that forked before it (or nobody may read where it forked).
    """
    now = place(connection)
    remedy = _REMEDY.format(name=subscription)
    if now.system != before["system"]:
        raise ServerRegressed(
            "this is not the server that the checkpoint came from",
            evidence=f"its system identifier is {now.system}, the checkpoint's {before['system']}",
            next_step="correct `dataSource`; if the outbox was moved, by dump and restore, pg_upgrade or replication: "
            f"`harvest subscriptions move`; to give the position up: `harvest subscriptions rewind {subscription} "
            "--to beginning|now`",
        )
    if now.timeline != before["timeline"]:
        fork = _fork(connection, now.timeline, before["timeline"])
        if fork is None or lsn_number(fork) < lsn_number(before["lsn"]):
            where = f"forked at {fork}" if fork else "where it forked cannot be read"
            reader = None if fork else _lacks_grant(connection)
            grant = (
                f"`GRANT EXECUTE ON FUNCTION pg_read_file(text) TO {reader}`, and start again; or " if reader else ""
            )
            raise ServerRegressed(
                "another server was promoted, and it may lack records that were harvested from the one before",
                evidence=f"timeline {now.timeline} instead of {before['timeline']}, {where}; "
                f"the checkpoint is at {before['lsn']}",
                next_step=grant + remedy,
            )
    elif lsn_number(now.lsn) < lsn_number(before["lsn"]):
        raise ServerRegressed(
            "the server's log ends before the checkpoint: it was restored to an earlier time",
            evidence=f"its log is at {now.lsn}, the checkpoint at {before['lsn']}",
            next_step=remedy,
        )
    return now


def lsn_number(lsn: str) -> int:
    """Return an LSN (`16/B374D848`) as a number of bytes."""
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _fork(connection: psycopg.Connection[Any], timeline: str, old: str) -> str | None:
    """Return the LSN at which the way to `timeline` left the timeline `old`; None if it cannot be known."""
    try:
        row = connection.execute(_HISTORY, (timeline,)).fetchone()
    except (pg.InsufficientPrivilege, pg.UndefinedFile, pg.UndefinedFunction):
        return None
    except psycopg.Error as error:
        raise translate(error) from error  # nothing is known: it is asked again
    for line in str(row[0]).splitlines() if row else ():
        if (found := re.match(r"\s*(\d+)\s+([0-9A-F]+/[0-9A-F]+)", line)) and int(found[1]) == int(old, 16):
            return found[2]
    return None


def _lacks_grant(connection: psycopg.Connection[Any]) -> str | None:
    """Return our role, quoted, if `_fork` knows nothing for the lack of a grant."""
    with translated():
        row = connection.execute(_LACKS_GRANT).fetchone()
    return str(row[0]) if row is not None else None
