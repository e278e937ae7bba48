"""Computes the summary and the findings of an audit from committed records with states, and the records in Kafka.

The numbers are defined as in the audit by Spark (`docs/audit.md`). The records go through a temporary SQLite database,
so memory is bounded. This module uses neither Kafka nor Postgres.
"""

import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from harvest_lib.audit import summary_queries as queries
from harvest_lib.audit.comparison import add_observed, find_copies
from harvest_lib.audit.records import MUST_COME, CommittedRecord, ObservedRecord
from harvest_lib.audit.results import MOST_FINDINGS, AuditFinding
from harvest_lib.audit.summary import AuditSummary

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOWEST_ID = -(2**63)
_PERCENTILES = {"delay_p50_ms": 0.5, "delay_p95_ms": 0.95, "delay_p99_ms": 0.99, "delay_max_ms": 1.0}


class Summarizing:
    """An audit whose records are in `database`, an empty database of `temporary_database`.

    Call the methods `add_…` first, then `compare` once, then `summary` and `findings`.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def add_delivered(self, records: Iterable[CommittedRecord], topic: str | None) -> None:
        """Add records that must be in Kafka unless the outbox still has them. `topic` is the topic of all of them, None
        if the topics are unknown."""
        rows = ((each.id, each.key, each.content, topic, MUST_COME, None) for each in records)
        self._database.executemany(queries.ADD_COMMITTED, rows)

    def add_outbox(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add rows of an outbox: id, key, content, topic, state, and creation time in microseconds. A key or content of
        None is unknown."""
        self._database.executemany(queries.ADD_COMMITTED, rows)

    def add_observed(self, records: Iterable[ObservedRecord]) -> None:
        """Add the records in Kafka."""
        add_observed(self._database, records)

    def compare(self, begins: Mapping[tuple[str, int], int], floor: int | None) -> None:
        """Find the differences. `begins` are the ends of the partitions before the committed records were read: later
        records may have been committed later. Ids below `floor` were dropped from the outbox, and are not judged."""
        self._database.execute(queries.CREATE_BEGINS)
        self._database.executemany(queries.ADD_BEGIN, [(*place, offset) for place, offset in begins.items()])
        find_copies(self._database)
        self._database.execute(queries.CREATE_STRANGE, (_LOWEST_ID if floor is None else floor,))
        for statement in queries.STEPS:
            self._database.execute(statement)

    def summary(self, audit_id: str, at: float) -> AuditSummary:
        """Return the numbers. `at` is the Unix time of the snapshot, by Postgres's clock."""
        cursor = self._database.execute(queries.COUNTS)
        counts = dict(zip((name for name, *_ in cursor.description), cursor.fetchone(), strict=True))
        since = self._one(queries.BACKLOG_SINCE)
        knows_keys = not self._one(queries.KEYLESS)
        return AuditSummary(
            audit_id=audit_id,
            at=datetime.fromtimestamp(at, UTC),
            **counts,
            **self._delays(),
            backlog_age_seconds=max(0.0, at - since / 1e6) if since is not None else 0.0,
            keys=self._one(queries.KEYS) if knows_keys else None,
            keys_with_gaps=self._one(queries.KEYS_WITH_GAPS) if knows_keys else None,
        )

    def findings(self) -> Iterator[AuditFinding]:
        """Yield the findings with the lowest ids, at most MOST_FINDINGS of each kind."""
        for query in queries.FINDINGS:
            for kind, record, *others, since in self._database.execute(query, {"most": MOST_FINDINGS}):
                yield AuditFinding(*(kind, str(record), *others, _time(since)))

    def _delays(self) -> dict[str, Any]:
        count = self._one(queries.COUNT_DELAYS)
        if not count:
            return dict.fromkeys(_PERCENTILES)
        ranks = {name: math.ceil(share * count) - 1 for name, share in _PERCENTILES.items()}
        return {name: self._database.execute(queries.DELAY, (rank,)).fetchone()[0] for name, rank in ranks.items()}

    def _one(self, query: str) -> Any:
        return self._database.execute(query).fetchone()[0]


def _time(microseconds: int | None) -> datetime | None:
    """Return the time; None for a time that Python cannot represent."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds) if microseconds is not None else None
    except OverflowError:
        return None
