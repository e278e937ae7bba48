"""Checks of a connection's server: a position must come from this server, and the server must not have lost records.

After a failover to an asynchronous standby, or after a restore, the server gives new records the transaction ids and
record ids of records that were already read. A reader that continued at its position would silently skip the new
records. So each position contains the server's system identifier, its timeline, and an LSN that was flushed to disk.
The server of each new connection is compared with these three values.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import errors as pg

from harvest_lib.errors import CheckpointError, DatabaseUnavailable, ServerRegressed
from harvest_lib.postgres.translation import translate, translated

_WHERE = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), pg_current_wal_flush_lsn()::text
"""

_TIMELINE = "SELECT CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END"

_IN_RECOVERY = "SELECT pg_is_in_recovery()"

# The message flushes all earlier WAL, regardless of the writers' `synchronous_commit`. It takes 0.1 ms and needs no
# privilege.
_BARRIER = "SELECT pg_logical_emit_message(true, 'harvest', '')::text"

FLUSHED_UP_TO = """
CASE WHEN NOT pg_is_in_recovery() AND current_setting('synchronous_standby_names') = '' THEN (
  SELECT CASE WHEN pg_current_wal_flush_lsn() >= written.lsn THEN written.lsn::text END
  FROM (SELECT pg_current_wal_insert_lsn() AS lsn OFFSET 0) AS written
) END
"""
"""SQL expression: the LSN up to which the WAL was written when the statement ran, if the WAL was flushed up to that
LSN; else NULL. If the result is an LSN, all records in the statement's snapshot are on disk, since the commit of a
transaction is in the WAL before snapshots show the transaction as ended. No barrier is needed then. With synchronous
standbys the expression is NULL, since only a barrier waits for a standby.
"""

_HISTORY = "SELECT pg_read_file('pg_wal/' || %s || '.history')"

_NEXT_TRANSACTION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text, pg_is_in_recovery()"

_FIRST_TIMELINE = "00000001"

_LACKS_GRANT = "SELECT quote_ident(current_user) WHERE NOT has_function_privilege('pg_read_file(text)', 'EXECUTE')"

_REMEDY = (
    "compare Kafka with the outbox (`harvest audit`), then anchor the subscription again: "
    "`harvest subscriptions rewind {name} --to {places}`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlace:
    """A WAL location: the server's system identifier, its timeline (8 hex digits) and an LSN. `forked` is the LSN at
    which the timeline forked from its predecessor, "" if unknown. Timeline numbers are not unique: a restore that does
    not find the history files of other timelines in the archive reuses a number."""

    system: str
    timeline: str
    lsn: str
    forked: str = ""

    def as_json(self) -> dict[str, str]:
        return {
            "system": self.system,
            "timeline": self.timeline,
            "lsn": self.lsn,
            **({"forked": self.forked} if self.forked else {}),
        }


def require_primary(connection: psycopg.Connection[Any]) -> None:
    """Raise DatabaseUnavailable if the server is a standby: snapshots there list no transaction as in progress."""
    with translated():
        row = connection.execute(_IN_RECOVERY).fetchone()
    if row is None or row[0]:
        raise standby()


def standby() -> DatabaseUnavailable:
    """Return the error to raise if the server of a connection is a standby."""
    return DatabaseUnavailable(
        "the server is a standby",
        evidence="pg_is_in_recovery() is true",
        next_step="name the primary in `dataSource`, or all servers: the connection goes to the primary then",
    )


def place(connection: psycopg.Connection[Any]) -> ServerPlace:
    """Return the WAL location up to which the server has flushed its WAL to disk."""
    return _place(connection)[0]


def _place(connection: psycopg.Connection[Any]) -> tuple[ServerPlace, Sequence[tuple[int, str]] | None]:
    """Return the flushed WAL location, and the ancestors of its timeline as `_forks` returns them."""
    with translated():
        (row,) = connection.execute(_WHERE)
    now = ServerPlace(system=row[0], timeline=row[1], lsn=row[2])
    forks = _forks(connection, now.timeline)
    return (replace(now, forked=forks[-1][1]) if forks else now), forks


def timeline(connection: psycopg.Connection[Any]) -> str | None:
    """Return the server's timeline, 8 hex digits; None on a standby."""
    with translated():
        row = connection.execute(_TIMELINE).fetchone()
    return row[0] if row is not None else None


def barrier(connection: psycopg.Connection[Any]) -> str:
    """Commit a message to the WAL and return its LSN. When this returns, all rows visible before it are on disk."""
    with translated():
        (row,) = connection.execute(_BARRIER, prepare=True)
    return str(row[0])


def remedy_of(subscription: str, source: str = "") -> str:
    """Return the next step for an error about a server that may lack records. For source `mark`, the text offers only a
    rewind to the mirror."""
    return _REMEDY.format(name=subscription, places="mirror" if source == "mark" else "mirror|beginning|now|SNAPSHOT")


def check(
    connection: psycopg.Connection[Any], before: Mapping[str, str], subscription: str, *, source: str = ""
) -> ServerPlace:
    """Compare the server with `before`, the WAL location in a position, and return the server's current WAL location.
    `source` is the name of the position's source.

    Raises ServerRegressed if the server may lack records before the position: it belongs to another cluster, its WAL
    ends before `before`, its timeline forked before `before`, or this role may not read where its timeline forked.
    """
    now, forks = _place(connection)
    remedy = remedy_of(subscription, source)
    if now.system != before["system"]:
        raise ServerRegressed(
            "this is not the server that the checkpoint came from",
            evidence=f"its system identifier is {now.system}, the checkpoint's {before['system']}",
            next_step="correct `dataSource`; if the outbox was moved, by dump and restore, pg_upgrade or replication: "
            f"`harvest subscriptions move`; to give the position up: `harvest subscriptions rewind {subscription} "
            "--to beginning|now`",
            wears_off=False,
        )
    began, fork = _branch(forks, before["timeline"], now)
    if before.get("forked") and began and began != before["forked"]:
        raise ServerRegressed(
            "the server was restored to an earlier time, and its timeline reuses the number of another timeline",
            evidence=f"its timeline {before['timeline']} forked at {began}, the checkpoint's at {before['forked']}; "
            f"the checkpoint is at {before['lsn']}",
            next_step=remedy,
        )
    if now.timeline != before["timeline"]:
        if fork is None or lsn_number(fork) < lsn_number(before["lsn"]):
            unknown = "and the fork cannot be read" if forks is None else "which is not among its ancestors"
            where = f"forked at {fork}" if fork else unknown
            reader = _lacks_grant(connection) if forks is None else None
            grant = (
                f"`GRANT EXECUTE ON FUNCTION pg_read_file(text) TO {reader}`, and start again; or " if reader else ""
            )
            raise ServerRegressed(
                "another server was promoted, and it may lack records that were harvested from its predecessor",
                evidence=f"timeline {now.timeline} instead of {before['timeline']}, {where}; "
                f"the checkpoint is at {before['lsn']}",
                next_step=grant + remedy,
                wears_off=forks is not None,
            )
    elif lsn_number(now.lsn) < lsn_number(before["lsn"]):
        raise ServerRegressed(
            "the server's log ends before the checkpoint: it was restored to an earlier time",
            evidence=f"its log is at {now.lsn}, the checkpoint at {before['lsn']}",
            next_step=remedy,
        )
    return now


def check_transactions(connection: psycopg.Connection[Any], transaction_id: int, subscription: str) -> None:
    """Raise CheckpointError if the server has not assigned `transaction_id` yet, the highest transaction id of a
    position. Raise DatabaseUnavailable on a standby."""
    with translated():
        (row,) = connection.execute(_NEXT_TRANSACTION)
    if row[1]:
        raise standby()
    if transaction_id > int(row[0]):
        raise CheckpointError(
            f"the checkpoint of subscription {subscription!r} is ahead of the database",
            evidence=f"it includes transactions up to {transaction_id}, the server has reached {row[0]}",
            next_step="correct `dataSource`, or, after a restore, anchor it again: `harvest subscriptions rewind "
            f"{subscription} --to mirror|beginning|now|SNAPSHOT`",
        )


def lsn_number(lsn: str) -> int:
    """Return an LSN (`16/B374D848`) as a number of bytes."""
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _branch(forks: Sequence[tuple[int, str]] | None, timeline: str, now: ServerPlace) -> tuple[str, str | None]:
    """Return two LSNs: where `timeline` began ("" if unknown), and where its successor forked from it (None if
    `timeline` is the current timeline, or no ancestor of the current timeline)."""
    known = forks or ()
    if timeline == now.timeline:
        return now.forked, None
    for number, (left, lsn) in enumerate(known):
        if left == int(timeline, 16):
            return (known[number - 1][1] if number else ""), lsn
    return "", None


def _forks(connection: psycopg.Connection[Any], timeline: str) -> Sequence[tuple[int, str]] | None:
    """Return the ancestors of a timeline, oldest first: of each ancestor the number, and the LSN at which its successor
    forked. Return None if the history file cannot be read."""
    if timeline == _FIRST_TIMELINE:
        return ()
    if _lacks_grant(connection):
        return None  # a query would fail, and the server would log an error each time
    try:
        row = connection.execute(_HISTORY, (timeline,)).fetchone()
    except (pg.InsufficientPrivilege, pg.UndefinedFile, pg.UndefinedFunction):
        return None
    except psycopg.Error as error:
        raise translate(error) from error  # the outcome is unknown: the next connection queries again
    lines = str(row[0]).splitlines() if row else []
    found = [re.match(r"\s*(\d+)\s+([0-9A-F]+/[0-9A-F]+)", each) for each in lines]
    return [(int(each[1]), each[2]) for each in found if each]


def _lacks_grant(connection: psycopg.Connection[Any]) -> str | None:
    """Return the connection's role, quoted, if the role may not read the timeline's history file; else None."""
    with translated():
        row = connection.execute(_LACKS_GRANT).fetchone()
    return str(row[0]) if row is not None else None
