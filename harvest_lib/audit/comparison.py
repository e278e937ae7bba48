"""Compares committed records with the records in Kafka, in bounded memory for any number of records.

Both streams are written to a temporary SQLite database on disk, in which window functions find the anomalies. The
database disappears when it is closed, or when the process is killed. Memory contains only SQLite's page cache and a few
examples. This module uses neither Kafka nor Postgres.

A record is identified by its id and, if known, its committed content. After a restore, the database assigns the same
ids again. A record that was delivered before the restore is then a different record than the committed record of the
same id. The ids of a key in the same partition must ascend, because writers lock the key before they insert, and the
sequence has CACHE 1.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from harvest_lib.audit import queries
from harvest_lib.audit.records import CommittedRecord, ObservedRecord
from harvest_lib.audit.report import AuditReport, Example, Explanation, LeaderStatistics, MovedKeys

_PAGE_CACHE_KIB = 16_384

ANOMALIES = {
    "pending": queries.PENDING,
    "lost": queries.LOST,
    "unknown": queries.UNKNOWN,
    "other_contents": queries.OTHER_CONTENTS,
    "wrong_keys": queries.WRONG_KEY,
    "adjacent_duplicates": queries.ADJACENT_DUPLICATES,
    "separated_duplicates": queries.SEPARATED_DUPLICATES,
    "unexplained_duplicates": queries.UNEXPLAINED_DUPLICATES,
    "reordered": queries.REORDERED,
    "order_violations": queries.ORDER_VIOLATIONS,
    "split_keys": queries.SPLIT_KEYS,
}


def audit(
    committed: Iterable[CommittedRecord],
    observed: Iterable[ObservedRecord],
    *,
    pending: Iterable[int] = (),
    committed_again: Callable[[], Iterable[CommittedRecord]] | None = None,
    purged_when_delivered: bool = False,
    examples: int = 20,
    show_keys: bool = False,
    spill_directory: Path | None = None,
) -> AuditReport:
    """Read each stream once, in the order committed, pending, observed. Return a report of their differences.

    The records of `observed` have offsets, so they may come in any order. `pending` are the ids that still wait in the
    outbox. `committed_again` repeats the query of `committed`. It is called at most once, and only if Kafka has ids
    that `committed` lacks: these records may have been committed after `committed` was read. With
    `purged_when_delivered`, `committed` is an outbox from which delivered rows are deleted: ids in Kafka that the
    outbox lacks count as purged, not as unknown. The report has up to `examples` examples of each anomaly.
    `spill_directory` is the folder of the temporary database (default: the system's folder for temporary files), which
    needs about 150 bytes for each record.
    """
    with temporary_database(spill_directory) as database:
        database.executemany(queries.ADD_COMMITTED, committed)
        database.executemany(queries.ADD_PENDING, ((record_id,) for record_id in pending))
        add_observed(database, observed)
        if committed_again is not None and database.execute(queries.UNKNOWN).fetchone():
            database.executemany(queries.ADD_ARRIVALS, committed_again())
            database.execute(queries.KEEP_ARRIVALS_SEEN)
        find_copies(database)
        return _report(database, examples=examples, show_keys=show_keys, purged_when_delivered=purged_when_delivered)


def add_observed(database: sqlite3.Connection, observed: Iterable[ObservedRecord]) -> None:
    """Write the records in Kafka, and index them."""
    database.executemany(queries.ADD_OBSERVED, observed)
    database.execute(queries.INDEX_IDS)
    database.execute(queries.INDEX_SEQUENCES)


def find_copies(database: sqlite3.Connection) -> None:
    """Set records with other contents aside; find steps back and copies among the remaining records in Kafka."""
    statements = (queries.SET_OTHERS_ASIDE, queries.FORGET_OTHERS, queries.CREATE_STEPS, queries.INDEX_STEPS)
    for statement in (*statements, queries.CREATE_COPIES, queries.INDEX_COPIES):
        database.execute(statement)


def _report(
    database: sqlite3.Connection, *, examples: int, show_keys: bool, purged_when_delivered: bool
) -> AuditReport:
    counts: dict[str, int] = {}
    found: dict[str, tuple[Example, ...]] = {}
    for name, query in ANOMALIES.items():
        counts[name], kept = _count_and_keep(database, query, examples=examples, show_keys=show_keys)
        if kept:
            found[name] = kept
    purged = 0
    if purged_when_delivered:
        purged, counts["unknown"] = counts["unknown"], 0
        found.pop("unknown", None)
    return AuditReport(
        records=_number(database, queries.COUNT_RECORDS),
        committed=_number(database, queries.COUNT_COMMITTED),
        delivered=_number(database, queries.COUNT_DELIVERED),
        foreign=_number(database, queries.COUNT_FOREIGN),
        purged=purged,
        duplicates=counts["adjacent_duplicates"] + counts["separated_duplicates"],
        **counts,
        explanations=tuple(
            Explanation(old_leader=UUID(bytes=old), new_leader=UUID(bytes=new), count=count)
            for old, new, count in database.execute(queries.EXPLANATIONS)
        ),
        leaders=tuple(
            LeaderStatistics(leader=UUID(bytes=leader), records=records, first_ms=first_ms, last_ms=last_ms)
            for leader, records, first_ms, last_ms in database.execute(queries.LEADERS)
        ),
        moved_keys=tuple(
            MovedKeys(topic=topic, partition=partition, keys=keys, first_ms=first_ms, first_offset=offset)
            for topic, partition, keys, first_ms, offset in (
                database.execute(queries.MOVED_KEYS) if counts["split_keys"] else ()
            )
        ),
        examples=found,
    )


def _count_and_keep(
    database: sqlite3.Connection, query: str, *, examples: int, show_keys: bool
) -> tuple[int, tuple[Example, ...]]:
    """Run a query once. Return two values: the number of its rows, and the first rows as examples."""
    count = 0
    kept: list[Example] = []
    for count, (topic, partition, offset, record_id, key) in enumerate(database.execute(query), start=1):  # noqa: B007
        if len(kept) < examples:
            shown = key.decode("utf-8", "backslashreplace") if show_keys and key is not None else None
            kept.append(Example(id=record_id, topic=topic, partition=partition, offset=offset, key=shown))
    return count, tuple(kept)


def _number(database: sqlite3.Connection, query: str) -> int:
    (number,) = database.execute(query).fetchone()
    return int(number)


@contextmanager
def temporary_database(directory: Path | None = None) -> Iterator[sqlite3.Connection]:
    """Open a database without a name. SQLite unlinks its file right after creating it."""
    database = sqlite3.connect("", isolation_level=None)
    try:
        if directory is not None:
            database.execute(f"PRAGMA temp_store_directory = '{str(directory).replace(chr(39), chr(39) * 2)}'")
        database.execute("PRAGMA temp_store = FILE")
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute(f"PRAGMA cache_size = -{_PAGE_CACHE_KIB}")
        database.executescript(queries.CREATE_TABLES)
        database.execute("BEGIN")
        yield database
    finally:
        database.close()
