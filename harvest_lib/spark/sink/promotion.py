"""The promotion of staged rows into the business table and the outbox, in a single transaction.

The steps of `promote`:

1. end sessions of the batch's tasks: a speculative copy of a task may still be about to commit. This step is left out
   if the tasks' messages contain the attempts, because rows of other attempts are not promoted
2. lock the outbox against other promotions until commit, so that the outbox ids of a key ascend in commit order
3. read the ledger. A batch in the ledger is not written again, and is refused if it has other data. A batch that this
   run itself wrote to the ledger before it lost its connection is not compared: its staged rows are gone
4. choose a complete attempt per partition: the attempt in the task's message, else the earliest. If Spark's content
   is known, compare row count and hash with that content
5. insert business rows and outbox rows in the declared order; compare the row counts again
6. delete the batch's staging rows, of this run and of dead runs
7. write the ledger entry; commit

No second pass over the frame is needed to show that the batch is complete. Spark's job has succeeded, so each partition
has committed an attempt. Postgres has not restarted since then: a restart would have emptied the staging table, but it
would also have ended the connection that holds the batch's lock and promotes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from harvest_lib.errors import DatabaseError, RecordError
from harvest_lib.record import TOPIC_MAX_CHARS
from harvest_lib.spark.errors import BatchConflict, PromotionRefused
from harvest_lib.spark.sink import queries
from harvest_lib.spark.sink.content import Content
from harvest_lib.spark.sink.database import Tables, postgres_errors
from harvest_lib.spark.sink.staging_tables import Staged, _empty_staging, clear_staging, end_writers
from harvest_lib.spark.sink.statement import Attempt, faults, illegal_topics, promotion

if TYPE_CHECKING:
    from harvest_lib.spark.sink.plan import WritePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """The ledger's row of a promoted batch. `promoted_at` is the time by Postgres's clock just before the commit. The
    seconds count the staging, and the promotion up to this time."""

    rows: int
    content_hash: str
    run: str
    promoted_at: datetime
    staging_seconds: float
    promote_seconds: float


def ledger_entry(connection: psycopg.Connection, batch: str, *, tables: Tables) -> LedgerEntry | None:
    """Return the batch's ledger row, None if the batch was not promoted."""
    with postgres_errors("reading the ledger"), _ledger_cursor(connection) as cursor:
        return cursor.execute(tables.fill(sql.SQL(queries.LEDGER_ENTRY)), {"batch": batch}).fetchone()


def enter_ledger(
    connection: psycopg.Connection,
    batch: str,
    content: Content,
    *,
    run: str,
    tables: Tables,
    staging_seconds: float,
) -> LedgerEntry:
    """Write the batch's ledger row in the caller's transaction, which promotes the batch and nothing else; return the
    row. Raises DatabaseError if a rule or a trigger of the ledger suppresses the row."""
    values = {
        "batch": batch,
        "rows": content.rows,
        "content_hash": content.content_hash,
        "run": run,
        "staging_seconds": staging_seconds,
    }
    with _ledger_cursor(connection) as cursor:
        entry = cursor.execute(tables.fill(sql.SQL(queries.ENTER_LEDGER)), values).fetchone()
    if entry is None:
        raise DatabaseError(
            f"the ledger {tables.ledger.as_string(None)} takes no row",
            evidence="an INSERT succeeded and has written nothing: a rule or a trigger of the table does that",
            next_step="drop it, and run the batch again: nothing of it was promoted",
        )
    return entry


def _ledger_cursor(connection: psycopg.Connection) -> psycopg.Cursor[LedgerEntry]:
    """Return a cursor that reads times in binary form, independent of the role's `DateStyle`."""
    return connection.cursor(binary=True, row_factory=class_row(LedgerEntry))


def check_same(entry: LedgerEntry, batch: str, content: Content) -> None:
    """Raise BatchConflict if the batch was promoted with data other than `content`."""
    if (entry.rows, entry.content_hash) != (content.rows, content.content_hash):
        raise BatchConflict(
            f"batch {batch} was promoted before, with other data",
            evidence=f"promoted at {entry.promoted_at.isoformat()} with {entry.rows} rows, hash {entry.content_hash}; "
            f"now it has {content}",
            next_step="give the new data a batch id of its own, or write the data of before; if ids start again "
            "(a stream without its checkpoint), give the stream a new name; if nothing changed, the frame is not the "
            "same each time it is computed: leave `current_timestamp` and `rand` out of it, or save it first",
        )


def choose_attempts(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the earliest attempt of each partition, ordered by partition."""
    chosen: dict[int, Attempt] = {}
    for attempt in sorted(attempts, key=lambda a: (a.partition, int(a.attempt))):
        chosen.setdefault(attempt.partition, attempt)
    return list(chosen.values())


def promote(
    connection: psycopg.Connection, batch: str, content: Content | None, *, staged: Staged, plan: "WritePlan"
) -> tuple[LedgerEntry, bool] | None:
    """Promote the staged rows as the batch. Return two values: the batch's ledger row, and True if this run has written
    that row.

    `content` is the content that Spark computed, None if it is unknown. If the ledger has no row of the batch,
    `content` is None and no rows are staged, this call writes nothing and returns None. Raises BatchConflict,
    RecordError or PromotionRefused, each with nothing written, or another DatabaseError.
    """
    tables = plan.tables
    if staged.named is None:
        end_writers(connection, staged.batch, tables=tables)
    with postgres_errors(f"promoting batch {batch}"), connection.transaction():
        connection.execute(queries.LOCK_OUTBOX, {"outbox": tables.outbox.as_string(None)})
        connection.execute(queries.ONE_SPELLING)
        connection.execute(queries.MORE_TO_SORT_IN)
        entry = ledger_entry(connection, batch, tables=tables)
        if entry is not None and staged.named is not None and entry.run == staged.run:
            return entry, True
        chosen = _chosen(connection, batch, staged=staged, tables=tables)
        hash_sum = sum((attempt.hash_sum for attempt in chosen), Decimal(0))
        found = Content(rows=sum(attempt.rows for attempt in chosen), content_hash=str(hash_sum))
        if entry is not None:
            check_same(entry, batch, content or found)
            clear_staging(connection, staged, tables=tables)
            return entry, False
        if content is None and not chosen:
            return None
        if content is not None and found != content:
            raise refused(batch, f"Spark computed {content}; staging holds {found}")
        for attempt in chosen:
            if not attempt.whole:
                raise refused(batch, f"of partition {attempt.partition}, only {attempt.rows} rows are staged")

        recorded, written = _insert(connection, batch, run=staged.run, plan=plan, chosen=chosen)
        if recorded != found.rows:
            raise refused(batch, f"Spark computed {found}; {recorded} rows reached the outbox")
        if written is not None and written != found.rows:
            raise refused(batch, f"Spark computed {found}; {written} rows reached the business table")
        if not _empty_staging(connection, staged, tables=tables):
            clear_staging(connection, staged, tables=tables)
        entry = enter_ledger(connection, batch, found, run=staged.run, tables=tables, staging_seconds=staged.seconds)
    return entry, True


def _chosen(connection: psycopg.Connection, batch: str, *, staged: Staged, tables: Tables) -> list[Attempt]:
    with connection.cursor(row_factory=class_row(Attempt)) as cursor:
        found = cursor.execute(tables.fill(sql.SQL(queries.ATTEMPTS)), {"run": staged.run}).fetchall()
    if staged.named is None:
        return choose_attempts(found)
    chosen = [each for each in found if staged.named.get(each.partition, ("", 0))[0] == each.attempt]
    if {each.partition: (each.attempt, each.rows) for each in chosen} != staged.named:
        raise refused(
            batch,
            f"the tasks name {sum(rows for _, rows in staged.named.values())} rows; "
            f"{sum(each.rows for each in chosen)} of them are staged. Postgres has crashed since, or another query or "
            "batch of the same name has replaced them",
        )
    return choose_attempts(chosen)


def _insert(
    connection: psycopg.Connection, batch: str, *, run: str, plan: "WritePlan", chosen: list[Attempt]
) -> tuple[int, int | None]:
    if plan.records.topic_column is not None:
        illegal = connection.execute(illegal_topics(plan, run=run, attempts=chosen)).fetchall()
        if illegal:
            raise rows_refused(
                batch,
                "; ".join(
                    f"{rows} rows have {'null' if topic is None else repr(topic[:TOPIC_MAX_CHARS])} as topic"
                    for topic, rows in illegal
                ),
            )
    try:
        with connection.transaction():  # a savepoint: after an error the faulty rows can still be queried
            done = connection.execute(promotion(plan, batch=batch, run=run, attempts=chosen))
    except (psycopg.errors.CharacterNotInRepertoire, psycopg.errors.UntranslatableCharacter) as error:
        raise rows_refused(batch, f"bytes of key or value are no text: {error.diag.message_primary}") from error
    except (psycopg.errors.StringDataRightTruncation, psycopg.errors.NotNullViolation) as error:
        found = connection.execute(faults(plan, run=run, attempts=chosen)).fetchone()
        evidence = fault(plan, *(found or (0, None, None)))
        said = f"{error.diag.message_primary} (table {error.diag.table_name or 'not named'})"
        raise rows_refused(batch, evidence or said) from error
    if plan.tables.business is None:
        return done.rowcount, None
    (row,) = done
    return row[0], row[1]


def fault(plan: "WritePlan", keyless: int, key: int | None, value: int | None) -> str:
    """Return why rows cannot be records, an empty text if they can. `keyless` is the number of rows without a key,
    `key` and `value` are the lengths in characters of the longest key and value."""
    key_limit, value_limit = (plan.outbox[name].longest_chars for name in ("kafka_key", "kafka_value"))
    if keyless:
        return f"{keyless} rows have null in the key: {', '.join(plan.records.key_columns)}"
    if key is not None and key_limit is not None and key > key_limit:
        return f"the longest key has {key} characters, kafka_key takes {key_limit}"
    if value is not None and value_limit is not None and value > value_limit:
        return f"the longest value has {value} characters, kafka_value takes {value_limit}"
    return ""


def rows_refused(batch: str, evidence: str) -> RecordError:
    """Return the error for a frame with rows that cannot be records."""
    return RecordError(
        f"batch {batch} holds rows that cannot be records",
        evidence=evidence,
        next_step="correct it in the frame (coalesce, where), or widen the column; nothing was promoted",
    )


def refused(batch: str, evidence: str) -> PromotionRefused:
    """Return the error for data in Postgres that differs from the data that Spark computed."""
    return PromotionRefused(
        f"batch {batch} was not promoted: Postgres does not hold what Spark computed",
        evidence=evidence,
        next_step="run the batch again; if it repeats, check for triggers on the tables, and for a frame that is not "
        "the same each time it is computed (random values, the current time)",
    )
