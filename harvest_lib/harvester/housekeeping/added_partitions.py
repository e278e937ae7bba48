"""Detection of topics to which partitions were added: their keys then hash to other partitions and lose their order.

During a term, a separate thread queries the brokers every half minute for the numbers of partitions. It queries the
topics that the term's records name, and the topics that the subscription has delivered to before. In a term of less
than half a minute, as in `run --drain`, it queries once at the end. The numbers are stored in the row of the
subscription (column `leader`). So a harvester that was not running when partitions were added logs the change after its
start. `source: mark` has no such row: then a process detects only changes that occur while it runs.
"""

import json
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from psycopg import sql

from harvest_lib.delivery.partitioners import moved_share
from harvest_lib.errors import HarvestError
from harvest_lib.kafka_client import answer_of, client_settings
from harvest_lib.leadership import Term
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import connect, in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.process import threads

_log = logging.getLogger(__name__)

_FIRST_SECONDS = 1.0
_EVERY_SECONDS = 30.0
_ANSWER_SECONDS = 5.0
_MOST_TOPICS = 1_000
"""Maximum number of topics whose numbers are stored."""

_READ = "SELECT leader -> 'topics' FROM {table} WHERE subscription = %(name)s AND shard = %(shard)s"

_WRITE = """
UPDATE {table} SET leader = jsonb_set(leader, '{{topics}}', %(topics)s)
WHERE subscription = %(name)s AND shard = %(shard)s AND leader IS NOT NULL
"""

Known = dict[str, dict[str, Any]]
"""The stored values of each topic: `partitions`, and, if partitions were added, `before` and `noticed_at`."""


_READ_ALL = "SELECT leader -> 'topics' FROM {table} WHERE subscription = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """An addition of partitions to a topic: the numbers of partitions before and after, and the time of detection."""

    topic: str
    before: int
    after: int
    noticed_at: datetime

    def __str__(self) -> str:
        at, moved = self.noticed_at.isoformat(timespec="seconds"), moved_share(self.before, self.after)
        return (
            f"the topic {self.topic!r} was given partitions, {self.before} before and {self.after} now, noticed at "
            f"{at}: {moved:.0%} of its keys go to other partitions since (see `harvest partition`), so that a "
            "key's records of before and after have no order among them"
        )


class Memory:
    """The numbers of partitions that a shard of a subscription stores in Postgres."""

    def __init__(self, conninfo: str, table: sql.Identifier, name: str, shard: int) -> None:
        self._conninfo = conninfo
        self._table = table
        self._row = {"name": name, "shard": shard}

    def load(self) -> Known:
        """Return the stored numbers; empty if no numbers are stored."""
        with connect(self._conninfo) as connection, translated():
            row = connection.execute(self._statement(_READ), self._row).fetchone()
        return dict(row[0]) if row is not None and isinstance(row[0], Mapping) else {}

    def save(self, known: Known) -> bool:
        """Store the numbers. Return False if the shard has no row yet."""
        kept = dict(list(known.items())[:_MOST_TOPICS])
        with connect(self._conninfo) as connection, translated():
            written = connection.execute(self._statement(_WRITE), {**self._row, "topics": json.dumps(kept)})
        return written.rowcount == 1

    def _statement(self, query: str) -> sql.Composed:
        return sql.SQL(query).format(table=in_statement(self._table))


class PartitionWatch:
    """Detects partitions added to the topics that `topics` returns. `kafka` are the user's settings for Kafka."""

    def __init__(
        self, kafka: Mapping[str, object], topics: Callable[[], Collection[str]], memory: Memory | None = None
    ) -> None:
        self._kafka = kafka
        self._topics = topics
        self._memory = memory
        self._known: Known | None = None
        self._is_unsaved = False

    @property
    def added(self) -> Sequence[Added]:
        """The additions of partitions detected so far. Any thread may read it."""
        return added_of((self._known or {}).copy())

    def begin(self, term: Term, stopping: threading.Event) -> None:
        """Start a thread that checks until the term is over, and return at once. The end of the process waits for the
        last check."""
        threads.repeat(
            "harvest-partitions",
            partial(self._check_if_named, stopping),
            stopping=stopping,
            pause_seconds=lambda: _EVERY_SECONDS if self._known else _FIRST_SECONDS,
            is_needed=term.is_live,
            at_end=self._check_at_end if self._memory is not None else None,
        )

    def check(self) -> None:
        """Compare the brokers' numbers of partitions with the stored numbers, and log additions. Raises HarvestError or
        KafkaException."""
        if self._known is None:
            self._known = self._memory.load() if self._memory is not None else {}
        names = list({*self._known, *self._topics()})  # stored topics too: a record for them may come at any time
        if not names:
            return
        for topic, partitions in self._counted(names).items():
            before = self._known.get(topic, {}).get("partitions")
            if before == partitions:
                continue
            self._is_unsaved = True
            entry = self._known[topic] = {"partitions": partitions}
            if before is not None and partitions > before:
                entry |= {"before": before, "noticed_at": datetime.now(UTC).isoformat(timespec="seconds")}
                _log.error(
                    "partitions_added",
                    extra={
                        "topic": topic,
                        "before": before,
                        "after": partitions,
                        "noticed_at": entry["noticed_at"],
                        "moved_share": round(moved_share(before, partitions), 3),
                    },
                )
        if self._is_unsaved and self._memory is not None:
            self._is_unsaved = not self._memory.save(self._known)

    def _counted(self, names: list[str]) -> dict[str, int]:
        with AdminClient(client_settings(self._kafka)) as admin:
            counted = {}
            for topic, answer in admin.describe_topics(TopicCollection(names), request_timeout=_ANSWER_SECONDS).items():
                try:
                    counted[topic] = len(answer_of(answer, 2 * _ANSWER_SECONDS).partitions)
                except KafkaException:  # the topic was deleted, or this user may not see it
                    continue
            return counted

    def _check_if_named(self, stopping: threading.Event) -> None:
        if self._known is None:
            stopping.wait(_FIRST_SECONDS)  # by then the first records have been read, and their topics are known
        self._try_to_check()

    def _check_at_end(self) -> None:
        if self._known is None or not self._known.keys() >= set(self._topics()):
            self._try_to_check()

    def _try_to_check(self) -> None:
        try:
            self.check()
        except (HarvestError, KafkaException) as error:
            _log.debug("partitions_unknown", extra={"reason": type(error).__name__})


def added_of(known: object) -> list[Added]:
    """Return the additions of partitions in the stored numbers of a shard. Malformed entries are skipped."""
    if not isinstance(known, Mapping):
        return []
    found = []
    for topic, entry in sorted(known.items()):
        with suppress(KeyError, TypeError, ValueError):  # no partitions were added, or the entry was written by hand
            before, after = int(entry["before"]), int(entry["partitions"])
            noticed_at = datetime.fromisoformat(entry["noticed_at"])
            if 0 < before < after:
                found.append(Added(topic=topic, before=before, after=after, noticed_at=noticed_at))
    return found


def read_added(connection: psycopg.Connection[Any], outbox: OutboxTable, subscription: str) -> Sequence[Added]:
    """Return the additions of partitions that a subscription's shards have stored, the latest for each topic. `outbox`
    must include its schema."""
    if (table := outbox.beside(connection, "subscriptions")) is None:
        return []
    statement = sql.SQL(_READ_ALL).format(table=in_statement(table.identifier))
    with translated():
        rows = connection.execute(statement, (subscription,)).fetchall()
    found = sorted((each for (known,) in rows for each in added_of(known)), key=lambda each: each.noticed_at)
    return list({each.topic: each for each in found}.values())
