"""Checks that a slot, its tables and its server continue where the pipeline's log ends. Each gap is an error.

A gap means changes that will never be sent. Causes: the slot is gone, or another reader advanced it; a table was not
followed for a while, or was recreated; the server was restored to an earlier time, or was promoted as a standby that
lacked changes.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg

from harvest_lib.errors import AdaptorError, DatabaseUnavailable, PositionLost
from harvest_lib.pipeline.adaptors.postgres import catalog
from harvest_lib.pipeline.adaptors.postgres.catalog import Table
from harvest_lib.pipeline.adaptors.postgres.history import fork_of
from harvest_lib.pipeline.adaptors.postgres.leaves import unsent
from harvest_lib.pipeline.adaptors.postgres.replication import Replication
from harvest_lib.source.server_identity import lsn_number

Known = Mapping[str, Sequence[int] | None]
"""All tables that were ever followed, by namespace. The numbers of a table are its oid, the id of the transaction that
last changed the publication's options, and the oids of the table's entries in the publication. None instead of numbers
means that the table is not followed any more."""

_PLACE = frozenset({"lsn", "system", "timeline", "commit"})
_FEWEST_NUMBERS = 3
"""`Known` has at least this many numbers for a followed table: the table's oid, a transaction id, and the oid of an
entry."""

_SLOT = """
SELECT plugin, database, confirmed_flush_lsn::text, wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = %s
"""
# While a slot is being created, the creating connection is active on it, and it has no confirmed LSN. A physical slot
# never has a confirmed LSN.
_MAKER = """
SELECT coalesce(active_pid, 0) FROM pg_replication_slots
WHERE slot_name = %s AND slot_type = 'logical' AND confirmed_flush_lsn IS NULL
"""
_SERVER = "SELECT system_identifier::text, pg_current_wal_flush_lsn()::text FROM pg_control_system()"


def system_of(connection: psycopg.Connection[Any]) -> str:
    """Return the server's system identifier. A copy of the server's files has the same identifier."""
    return _server(connection)[0]


def maker_of(connection: psycopg.Connection[Any], slot: str) -> int | None:
    """Return the process id of the server process that is still creating a slot, None if there is no such process.

    The process waits for transactions that were open, and during the wait does not notice that its client has
    disconnected. So a pipeline that is stopped during the wait leaves the process behind. The process ends after those
    transactions, and the unfinished slot is removed with it.
    """
    found = catalog.rows_of(connection, "slots", _MAKER, (slot,))
    return int(found[0][0]) if found else None


def place_of(connection: psycopg.Connection[Any], slot: str, before: Mapping[str, Any] | None) -> str | None:
    """Return the LSN that was confirmed to a slot; None if the slot has to be created.

    `before` is the position in the pipeline's log (`lsn` and `system`, the server's identifier), None at the first
    start. Raises PositionLost if the slot or the server lacks changes after this position, AdaptorError if the slot is
    unusable.
    """
    found = catalog.rows_of(connection, "slots", _SLOT, (slot,))
    copy_again = gone_for_good(slot)
    if before is not None:
        _require_server(connection, before, copy_again)
    if not found:
        if before is None:
            return None
        # Not permanent: after a failover, the slot may reappear later. A recreated slot is recognized by its start.
        raise PositionLost(
            f"the slot {slot!r} is not there any more",
            evidence=f"the pipeline's log has come to {before['lsn']} of it",
            next_step=copy_again,
        )
    ((plugin, database, confirmed, is_lost),) = found
    if plugin != "pgoutput" or database != connection.info.dbname:
        raise AdaptorError(
            f"the slot {slot!r} is another's",
            evidence=f"its plugin is {plugin}, its database {database}",
            next_step="give `slot` a name of its own",
        )
    if confirmed is None:
        raise AdaptorError(
            f"the slot {slot!r} is still being made by another connection",
            evidence="it has no place in the server's log yet",
            next_step="run it again once that connection has ended (pg_replication_slots has its `active_pid`)",
        )
    if is_lost:
        raise PositionLost(
            f"the server has given up the slot {slot!r}", evidence="wal_status lost", next_step=copy_again
        )
    if before is None:
        return str(confirmed)
    if lsn_number(confirmed) > lsn_number(before["lsn"]):
        raise PositionLost(
            f"another reader has moved the slot {slot!r} on",
            evidence=f"it is at {confirmed}, the pipeline's log has come to {before['lsn']}",
            next_step=f"find the other reader, and give each a `slot` of its own; {copy_again}",
        )
    return str(confirmed)


def require_timeline(replication: Replication, before: Mapping[str, Any], slot: str) -> int:
    """Return the server's timeline. `before` is the position in the pipeline's log. Raises PositionLost if the server
    left that position's timeline at an LSN before the position."""
    _, timeline, *_ = replication.ask_for("IDENTIFY_SYSTEM")[0]
    now, known = int(timeline), before.get("timeline", int(timeline))
    if now != known:
        ((_, history),) = replication.ask_for(f"TIMELINE_HISTORY {now}")
        fork = fork_of(history, known)
        if fork is None or fork < lsn_number(before["lsn"]):
            raise PositionLost(
                "another server was promoted before it had all changes that were read, or this server was restored",
                evidence=f"its timeline is {now}, which left {known} "
                + (f"at {fork >> 32:X}/{fork & 0xFFFFFFFF:X}" if fork is not None else "at no place that it knows")
                + f", the pipeline's log has come to {before['lsn']}",
                next_step=f"compare the destinations with the source; {gone_for_good(slot)}",
            )
    return now


def require_log(error: DatabaseUnavailable, slot: str) -> None:
    """Raise PositionLost if `error` says that the server lacks a file of its log or of the slot. Postgres reports a
    missing file as a system error, in the same way as temporary failures."""
    if isinstance(error.__cause__, pg.UndefinedFile):
        raise PositionLost(
            f"the server's log lacks changes kept for the slot {slot!r}: it was reset (pg_resetwal), or files "
            "of it were removed",
            evidence=error.evidence,
            next_step=f"compare the destinations with the source; {gone_for_good(slot)}",
        ) from error


def gone_for_good(slot: str) -> str:
    """Return the text of the next step, for an error which means that changes are lost."""
    return f"the changes since then are gone: {_how_to_copy_again(slot)}; all tables are copied again then"


def require_whole(place: Mapping[str, Any] | None, known: Known, *, slot: str) -> None:
    """Raise PositionLost if the position in the log (`place`, `known`) lacks fields by which a gap is detected. Another
    version of the library wrote such a position."""
    lacking = sorted(_PLACE - place.keys()) if place is not None else []
    lacking += [name for name, numbers in known.items() if numbers is not None and len(numbers) < _FEWEST_NUMBERS]
    if lacking:
        raise PositionLost(
            "the position in the pipeline's log was written by another version, and does not hold enough to go on from",
            evidence=f"it lacks fields of this version: {', '.join(lacking)}",
            next_step=f"go on with the version that wrote it; or have all copied again: {_how_to_copy_again(slot)}",
        )


def known_of(tables: Sequence[Table], before: Known) -> dict[str, Sequence[int] | None]:
    """Return the new value of `Known`: the numbers of `tables`, and None for all other tables in `before`."""
    return {
        **dict.fromkeys(before),
        **{each.namespace: [each.oid, each.altered, *each.membership] for each in tables},
    }


def require_followed(tables: Sequence[Table], known: Known, *, slot: str) -> None:
    """Raise PositionLost if one of the tables was not followed continuously since it was first followed."""
    for table in tables:
        if table.namespace not in known:
            continue
        before = known[table.namespace]
        if before is None:
            raise _gap(table.namespace, slot, "the pipeline ran without it")
        oid, altered, *membership = before
        if oid != table.oid:
            raise _gap(table.namespace, slot, f"it was relation {oid}, and is {table.oid}: it was recreated")
        if not set(membership) <= set(table.membership):
            raise _gap(table.namespace, slot, "it was taken out of the publication; it is back by now")
        if altered != table.altered:
            raise _gap(table.namespace, slot, _altered(altered, table.altered))


def require_sent(
    connection: psycopg.Connection[Any], tables: Sequence[Table], followed: Collection[str], *, slot: str
) -> None:
    """Raise an error if Postgres does not send all changes of one of the tables. The error is PositionLost if the table
    is in `followed` (namespaces) and changes of it are lost already, else AdaptorError."""
    for table in tables:
        found = unsent(connection, table)
        if found is None:
            continue
        if found.is_lost and table.namespace in followed:
            raise _gap(table.namespace, slot, found.evidence, remedy=f"{found.remedy}; ")
        raise AdaptorError(
            f"{table.namespace} cannot be followed: Postgres does not send all its changes",
            evidence=found.evidence,
            next_step=f"{found.remedy}; or name in `tables` the partitions that can be followed, if the publication is "
            "without publish_via_partition_root",
        )


def require_members(
    connection: psycopg.Connection[Any], publication: str, tables: Sequence[Table], *, slot: str
) -> None:
    """Raise PositionLost if changes of a table may have been missed since reading began: the table was removed from the
    publication, the publication was altered, another table has taken its name, or the table is unlogged. A dropped
    table is no error. Raises AdaptorError if later changes will not be sent: see `require_sent`."""
    require_sent(connection, tables, {each.namespace for each in tables}, slot=slot)
    for table in tables:
        now = catalog.standing(connection, publication, table.oid, table.namespace)
        if now.named not in {0, table.oid}:
            evidence = f"it is relation {table.oid}, and {now.named} has its name by now: it was recreated or swapped"
            raise _gap(table.namespace, slot, evidence)
        if not now.is_there:
            continue
        if not set(table.membership) <= set(now.membership):
            raise _gap(table.namespace, slot, f"it was taken out of the publication {publication!r}")
        if now.altered != table.altered:
            raise _gap(table.namespace, slot, _altered(table.altered, now.altered))


def _altered(before: int, now: int) -> str:
    return (
        "the publication was altered, and may have left out changes meanwhile, whatever its options are by now "
        f"(its row is of transaction {now}, it was of {before})"
    )


def _require_server(connection: psycopg.Connection[Any], before: Mapping[str, Any], copy_again: str) -> None:
    system, end = _server(connection)
    if before["system"] != system:
        raise PositionLost(
            "this is not the server that the pipeline's log came from",
            evidence=f"its system identifier is {system}, the log's {before['system']}",
            next_step=f"correct `data_source`, or: {copy_again}",
        )
    if lsn_number(end) < lsn_number(before["lsn"]):
        raise PositionLost(
            "the server lacks what was read from it: it was restored, or promoted before it had everything",
            wears_off=True,
            evidence=f"its log ends at {end}, the pipeline's log has come to {before['lsn']}",
            next_step=f"compare the destinations with the source; {copy_again}",
        )


def _server(connection: psycopg.Connection[Any]) -> tuple[str, str]:
    ((system, end),) = catalog.rows_of(connection, "the server", _SERVER)
    return system, end


def _gap(namespace: str, slot: str, evidence: str, *, remedy: str = "") -> PositionLost:
    return PositionLost(
        f"{namespace} was not followed for a while, and its changes of that time are gone",
        evidence=evidence,
        next_step=f"{remedy}leave it out here, and give it a pipeline of its own, which copies it (another `folder`, "
        f"`slot` and `publication`); or have all copied again: {_how_to_copy_again(slot)}",
    )


def _how_to_copy_again(slot: str) -> str:
    return (
        f"drop the slot if it is there (SELECT pg_drop_replication_slot('{slot}')), move the pipeline's folder away, "
        "and start again"
    )
