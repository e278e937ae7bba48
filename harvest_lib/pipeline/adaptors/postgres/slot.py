"""Checks that a slot, its tables and its server still follow on a pipeline's log. Each gap is an error.

A gap has changes that will never be sent: the slot is gone or was moved on; a table was left out for a while, or
recreated; the server was restored to an earlier time, or promoted before it had everything.
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
"""Tables that were ever followed, by namespace: their numbers (the table's, the transaction that last changed the
publication's options, its entries in the publication); None for a table that is not followed any more."""

_PLACE = frozenset({"lsn", "system", "timeline", "commit"})
_FEWEST_NUMBERS = 3
"""Of a followed table: its own number, the number of the publication's options, and an entry."""

_SLOT = """
SELECT plugin, database, confirmed_flush_lsn::text, wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = %s
"""
# The first connection holds a slot until it is made; before that it has no place. A physical slot never has a place.
_MAKER = """
SELECT coalesce(active_pid, 0) FROM pg_replication_slots
WHERE slot_name = %s AND slot_type = 'logical' AND confirmed_flush_lsn IS NULL
"""
_SERVER = "SELECT system_identifier::text, pg_current_wal_flush_lsn()::text FROM pg_control_system()"


def system_of(connection: psycopg.Connection[Any]) -> str:
    """Return the server's identifier, which a copy of its files has too."""
    return _server(connection)[0]


def maker_of(connection: psycopg.Connection[Any], slot: str) -> int | None:
    """Return the process id of the connection that is still making a slot, None if there is no such connection.

    It waits for transactions that were open, and does not notice meanwhile that its client has gone: a pipeline that
    was stopped while it waited leaves it behind. It goes, and the slot with it, once it need not wait any more.
    """
    found = catalog.rows_of(connection, "slots", _MAKER, (slot,))
    return int(found[0][0]) if found else None


def place_of(connection: psycopg.Connection[Any], slot: str, before: Mapping[str, Any] | None) -> str | None:
    """Return the LSN that was confirmed to a slot; None if it has to be made. Raises PositionLost.

    `before` is the position of the log: `lsn`, and `system`, the server's identifier.
    """
    found = catalog.rows_of(connection, "slots", _SLOT, (slot,))
    copy_again = gone_for_good(slot)
    if before is not None:
        _require_server(connection, before, copy_again)
    if not found:
        if before is None:
            return None
        # Not permanent: a failover may restore the slot late. A slot that was made again is recognized by its start.
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
    """Return the server's timeline. Raises PositionLost if it left a position's timeline before that position."""
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
    """Raise PositionLost if the server has lost a file of its log, or of the slot. Postgres reports that in the class
    of system errors, most of which pass."""
    if isinstance(error.__cause__, pg.UndefinedFile):
        raise PositionLost(
            f"the server's log lacks changes kept for the slot {slot!r}: it was reset (pg_resetwal), or files "
            "of it were removed",
            evidence=error.evidence,
            next_step=f"compare the destinations with the source; {gone_for_good(slot)}",
        ) from error


def gone_for_good(slot: str) -> str:
    """Return the next step where changes are gone."""
    return f"the changes since then are gone: {_how_to_copy_again(slot)}; all tables are copied again then"


def require_whole(place: Mapping[str, Any] | None, known: Known, *, slot: str) -> None:
    """Raise PositionLost if a log's position lacks the fields that reveal a gap: another version wrote it."""
    lacking = sorted(_PLACE - place.keys()) if place is not None else []
    lacking += [name for name, numbers in known.items() if numbers is not None and len(numbers) < _FEWEST_NUMBERS]
    if lacking:
        raise PositionLost(
            "the position in the pipeline's log was written by another version, and does not hold enough to go on from",
            evidence=f"it lacks fields of this version: {', '.join(lacking)}",
            next_step=f"go on with the version that wrote it; or have all copied again: {_how_to_copy_again(slot)}",
        )


def known_of(tables: Sequence[Table], before: Known) -> dict[str, Sequence[int] | None]:
    """Return the known tables once these tables are followed."""
    return {
        **dict.fromkeys(before),
        **{each.namespace: [each.oid, each.altered, *each.membership] for each in tables},
    }


def require_followed(tables: Sequence[Table], known: Known, *, slot: str) -> None:
    """Raise PositionLost if one of the tables was not followed all the time since it first was."""
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
    """Raise if Postgres does not send all changes of one of the tables: PositionLost for a table that is among the
    namespaces that were `followed`, and has lost some, else AdaptorError."""
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
    """Raise PositionLost if changes of one of the tables may not have come since: it was taken out of the publication,
    the publication was altered, another table has its name, or it is unlogged. One that was dropped has no changes.
    Raises AdaptorError if its next changes will not come: see `require_sent`."""
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
