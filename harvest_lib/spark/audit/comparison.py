"""Compare committed records with the records in Kafka: by record, and by key.

    copies in Kafka ─┬─► by record: a hash aggregate with committed records ─► lost, unknown, waiting, delays
                     │        └─► records with several copies: a window over these alone
                     └─► by key's sequence: sorted by offset ─► steps back, copies that are adjacent
                              └─► by key, as it is sorted already, with the keys of lost records ─► keys with gaps

Each comparison shuffles narrow rows once. Only the numbers are collected. Aggregates and sorts spill to disk, so memory
is bounded for any size. One task sorts all records of a key, even billions.

A *record* is the unit compared: an outbox id, or the value of a configured header. Its *sequence* is all copies of its
key's records in one partition of a topic; outbox ids should ascend in it. A key has a *gap* if one of its records in a
topic is lost, reordered or unknown. This module knows neither Kafka nor Postgres.

A frame `observed` has a row for each copy: record, outbox_id, leader, topic, partition, offset, key, at, content,
`is_settled` (false if the copy may be later than the snapshot of Postgres) and `is_judged` (also false if the outbox
has dropped the record). A frame `committed` has record, since, state, content (null if it is unknown; a null is not
compared) and `is_new` (false if an earlier audit counted the record).

A message with the id of a committed record, but with another content, is no copy of that record: the id was assigned
twice. `others` finds such messages, and the comparison is repeated without them.
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from harvest_lib.audit.records import MUST_COME, WAITS

ADJACENT, SEPARATED, CROSS_EPOCH = "adjacent", "separated", "cross_epoch"
"""Kinds of a repeated copy of a record. A copy from a term that had not sent the record before is `cross_epoch`."""

LOST, DUPLICATE, REORDERED, UNKNOWN = "lost", "duplicate", "reordered", "unknown"
"""The kinds of findings."""

COPY = ("record", "outbox_id", "leader", "topic", "partition", "offset", "key", "at", "content")
"""The columns of a copy."""
ENDS = ("topic", "partition", "key", "offset", "record", "outbox_id", "has_gap")
"""The columns of the end of a sequence: offset and record of the sequence's last copy, the `outbox_id` of the last copy
that repeats no earlier copy, and whether a record of the key was out of order or unknown (`has_gap`)."""

_PLACE = ("topic", "partition", "offset")
_PERCENTILES = (0.5, 0.95, 0.99)
_ACCURACY = 10_000


def by_record(observed: DataFrame, committed: DataFrame, earlier: DataFrame | None = None) -> DataFrame:
    """Return a row for each record that was committed or is in Kafka, with its findings.

    `earlier` are the copies from earlier audits of records that have further copies now.
    """
    known_content = F.col("content").alias("known_content")
    copies = observed.select(
        "record", "outbox_id", "at", "content", "is_settled", "is_judged", F.lit(0).alias("before")
    )
    if earlier is not None:
        before = earlier.select("record", known_content, F.lit(1).alias("before"))
        copies = copies.unionByName(before, allowMissingColumns=True)
    rows = copies.unionByName(
        committed.select("record", "since", "state", known_content, F.col("is_new").cast("int").alias("is_new")),
        allowMissingColumns=True,
    )
    # All buffers have a fixed width, so that Spark uses a hash aggregate and sorts nothing.
    verdicts = rows.groupBy("record").agg(
        F.max("outbox_id").alias("outbox_id"),
        F.count("at").alias("copies"),
        _count(F.col("is_settled")).alias("settled"),
        _count(F.col("is_judged")).alias("judged"),
        F.coalesce(F.sum("before"), F.lit(0)).alias("before"),
        F.min("at").alias("at"),
        F.max("since").alias("since"),
        F.max("state").alias("state"),
        F.max("is_new").alias("is_new"),
        F.min("content").alias("least_content"),
        F.max("content").alias("most_content"),
        F.max("known_content").alias("content"),
    )
    differs = (F.col("least_content") != F.col("content")) | (F.col("most_content") != F.col("content"))
    known, is_missing = F.col("is_new").isNotNull(), (F.col("copies") == 0) & (F.col("before") == 0)
    return verdicts.select(
        *("record", "outbox_id", "since", "state"),
        (F.col("is_new") == 1).alias("is_committed"),
        (known & is_missing & (F.col("state") == MUST_COME)).alias("is_lost"),
        (known & is_missing & (F.col("state") == WAITS)).alias("is_waiting"),
        (~known & (F.col("judged") > 0) & (F.col("before") == 0)).alias("is_unknown"),
        ((F.col("copies") > 0) & (F.col("copies") + F.col("before") > 1)).alias("is_repeated"),
        F.coalesce(differs, F.lit(False)).alias("has_others"),
        "content",
        # Records without a settled copy. The next audit reads the copies of these records again, so it reads the
        # records again too.
        (known & (F.col("settled") == 0) & (F.col("before") == 0)).alias("is_open"),
        F.when(
            known & (F.col("copies") > 0) & (F.col("before") == 0), _milliseconds("at") - _milliseconds("since")
        ).alias("delay_ms"),
    )


def others(observed: DataFrame, differing: DataFrame) -> DataFrame:
    """Return the messages with a content that differs from the committed content of their record.

    `differing` are rows of `by_record` with `has_others`.
    """
    known = differing.select("record", F.col("content").alias("known_content"))
    return observed.join(known, "record").where("content <> known_content").drop("known_content")


def repeats(observed: DataFrame, repeated: DataFrame, earlier: DataFrame | None = None) -> DataFrame:
    """Return the copies of all records with several copies. Each copy has its relation to the record's earlier copies.

    `repeated` are the records with several copies. `earlier` are copies from earlier audits: this function compares
    them, but does not return them.
    """
    copies = observed.select(*COPY, "is_settled", F.lit(1).alias("turn"))
    if earlier is not None:
        copies = copies.unionByName(earlier.select(*COPY, F.lit(True).alias("is_settled"), F.lit(0).alias("turn")))
    copies = copies.join(repeated.select("record"), "record", "left_semi")
    # Copies that the next audit reads again come last, so that they do not affect other copies.
    order = (F.when(F.col("is_settled"), F.col("turn")).otherwise(2), "topic", "partition", "key", "offset")
    in_log = Window.partitionBy("record").orderBy(*order)
    in_sequence = Window.partitionBy("record", "topic", "partition", "key").orderBy("offset")
    return copies.select(
        *_PLACE,
        "leader",
        "turn",
        (F.row_number().over(in_log) > 1).alias("is_copy"),
        (F.row_number().over(in_sequence) == 1).alias("is_first"),
        F.lag("leader").over(in_log).alias("leader_before"),
        F.array_contains(
            F.collect_set("leader").over(in_log.rowsBetween(Window.unboundedPreceding, -1)), F.col("leader")
        ).alias("is_same_term"),
    ).where(F.col("turn") == 1)


def by_sequence(
    observed: DataFrame,
    repeated: DataFrame | None = None,
    ends: DataFrame | None = None,
    *,
    unknown: DataFrame | None = None,
    lost: DataFrame | None = None,
    other: DataFrame | None = None,
) -> DataFrame:
    """Return a row for each copy, with the findings on the copy and on its key.

    `repeated` is the result of `repeats`, `ends` the ends of sequences from the last audit, `unknown` the records that
    were never committed, `lost` topic and key of each lost record, and `other` the result of `others`. An argument is
    None if it would have no rows. Rows of `ends`, `lost` and `other` are returned too, with `is_there` false.
    """
    rows = observed.select("record", "outbox_id", *_PLACE, "key", "is_settled", F.lit(True).alias("is_there"))
    if repeated is not None:
        rows = rows.join(repeated, list(_PLACE), "left")
    else:
        rows = rows.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in _REPEATED.items()))
    wrong = F.lit(None).cast("boolean")
    rows = rows.withColumns({"is_lost": wrong, "has_gap": wrong})
    if unknown is not None:
        strange = unknown.select("record", F.lit(True).alias("is_unknown"))
        rows = rows.join(strange, "record", "left")
    else:
        rows = rows.withColumn("is_unknown", wrong)
    if ends is not None:
        settled = F.lit(True).alias("is_settled")
        rows = rows.unionByName(ends.select("*", settled), allowMissingColumns=True)
    if lost is not None:
        is_lost = F.lit(True).alias("is_lost")
        rows = rows.unionByName(lost.select("topic", "key", is_lost), allowMissingColumns=True)
    if other is not None:
        is_other = F.lit(True).alias("is_lost"), F.col("is_settled").alias("has_gap")
        rows = rows.unionByName(other.select("topic", "key", *is_other), allowMissingColumns=True)
    # Rows are sorted by a hash first, because a sort compares hashes faster than whole rows. Rows that are shuffled and
    # sorted by key need no second shuffle or sort for the sequences of the key.
    rows = rows.withColumn("hashed", F.xxhash64("topic", "key")).repartition("hashed")
    sequence = Window.partitionBy("hashed", "topic", "key", "partition").orderBy("offset")
    so_far = sequence.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_first = F.coalesce("is_first", F.lit(True))
    stepped = rows.select(
        "*",
        F.lag("record").over(sequence).alias("record_before"),
        F.lead("is_settled").over(sequence).alias("is_next_settled"),
        F.last(F.when(is_first, F.col("outbox_id")), ignorenulls=True).over(so_far).alias("highest"),
    )
    before = F.lag("highest").over(sequence)
    judged = stepped.select(
        *("record", "outbox_id", "key", *_PLACE, "leader", "leader_before", "is_settled"),
        *("hashed", "is_lost", "is_unknown", "has_gap"),
        before.alias("outbox_id_before"),
        F.coalesce("is_there", F.lit(False)).alias("is_there"),
        "highest",
        (F.col("is_settled") & ~F.coalesce("is_next_settled", F.lit(False))).alias("is_end"),
        F.when(
            F.col("is_copy"),
            F.when(~F.col("is_same_term"), CROSS_EPOCH)
            .when(F.col("record_before") == F.col("record"), ADJACENT)
            .otherwise(SEPARATED),
        ).alias("duplicate"),
        (F.col("is_there") & is_first & (F.col("outbox_id") < before)).alias("is_reordered"),
    )
    of_key = Window.partitionBy("hashed", "topic", "key").orderBy("partition", "offset")
    whole = of_key.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    is_wrong = _any_of("is_reordered", "is_unknown")
    return judged.select(
        *(name for name in judged.columns if name not in {"hashed", "is_lost", "is_unknown", "has_gap"}),
        (F.row_number().over(of_key) == 1).alias("is_key"),
        F.max(_any_of("is_lost", "has_gap") | is_wrong).over(whole).alias("is_key_wrong"),
        # What the next audit takes over: it reads unsettled copies again, and searches for lost records again.
        F.max(_any_of("has_gap") | (is_wrong & _any_of("is_settled"))).over(whole).alias("has_gap"),
    )


def _any_of(*names: str) -> Column:
    return reduce(or_, (F.coalesce(name, F.lit(False)) for name in names))


_REPEATED = {
    "leader": "binary",
    "turn": "int",
    "is_copy": "boolean",
    "is_first": "boolean",
    "leader_before": "binary",
    "is_same_term": "boolean",
}


def ends_of(stepped: DataFrame) -> DataFrame:
    """Return the ends of sequences for the next audit, from the result of `by_sequence`."""
    return stepped.where("is_end").select(
        "topic", "partition", "key", "offset", "record", F.col("highest").alias("outbox_id"), "has_gap"
    )


def _milliseconds(name: str) -> Column:
    return F.unix_micros(name) / 1000


def record_numbers() -> list[Column]:
    """Return the aggregates over the result of `by_record`. Most aggregates are named like a column of
    `harvest_audit.summary`."""
    delays = F.percentile_approx("delay_ms", list(_PERCENTILES), _ACCURACY)
    return [
        _count(F.col("is_committed")).alias("committed"),
        _count(F.col("is_lost")).alias("lost"),
        _count(F.col("is_unknown")).alias("unknown"),
        _count(F.col("is_waiting")).alias("backlog_records"),
        _count(F.col("is_repeated")).alias("repeated"),
        _count(F.col("is_open")).alias("open"),
        _count(F.col("has_others")).alias("differing"),
        F.unix_micros(F.min(F.when(F.col("is_waiting"), F.col("since")))).alias("backlog_since"),
        F.array_join(delays.cast("array<string>"), " ").alias("delays_ms"),  # Spark 4.0 gives no arrays back
        F.max("delay_ms").alias("delay_max_ms"),
    ]


COPY_NUMBERS = ("ours", "duplicates_adjacent", "duplicates_separated", "duplicates_cross_epoch", "reordered")
"""Counts in `copy_numbers`. A second count of each, `settled_…`, has only copies that no later audit reads again."""


KEY_NUMBERS = ("keys", "keys_with_gaps")
"""Counts of keys in `copy_numbers`. The counts cover all audits so far, because each audit has the ends of all
sequences."""


def copy_numbers() -> list[Column]:
    """Return the aggregates over the result of `by_sequence`, named as in COPY_NUMBERS and KEY_NUMBERS."""
    counted = [
        F.col("is_there"),
        *(F.col("duplicate") == kind for kind in (ADJACENT, SEPARATED, CROSS_EPOCH)),
        F.col("is_reordered"),
    ]
    named = list(zip(COPY_NUMBERS, counted, strict=True))
    return [
        *(_count(condition).alias(name) for name, condition in named),
        *(_count(condition & F.col("is_settled")).alias(f"settled_{name}") for name, condition in named),
        _count(F.col("is_key")).alias("keys"),
        _count(F.col("is_key") & F.col("is_key_wrong")).alias("keys_with_gaps"),
    ]


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, 1))


def delays_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the delays in an observation, keyed by their names in the summary. The delays are None if nothing was
    delivered."""
    named = found["delays_ms"]
    middle, high, highest = map(float, named.split()) if named else (None,) * len(_PERCENTILES)
    return {
        "delay_p50_ms": middle,
        "delay_p95_ms": high,
        "delay_p99_ms": highest,
        "delay_max_ms": found["delay_max_ms"],
    }


def findings(
    verdicts: DataFrame, stepped: DataFrame, observed: DataFrame, other: DataFrame | None = None, *, most: int
) -> DataFrame:
    """Return a row for each finding, at most `most` of each kind, the lowest ids first. A copy can have two findings.

    Messages in `other` count as unknown records: they were not committed with this content.
    """
    strange = observed.join(verdicts.where("is_unknown").select("record"), "record", "left_semi")
    first = Window.partitionBy("record").orderBy("topic", "partition", "key", "offset")
    strange = strange.withColumn("copy", F.row_number().over(first)).where("copy = 1").drop("copy")
    if other is not None:
        strange = strange.unionByName(other.select(*strange.columns))
    kinds = [
        (LOST, verdicts.where("is_lost")),
        (DUPLICATE, stepped.where("duplicate IS NOT NULL")),
        (REORDERED, stepped.where("is_reordered").drop("duplicate")),
        (UNKNOWN, strange),
    ]
    found = None
    for kind, rows in kinds:
        named = {name: F.col(name) if name in rows.columns else F.lit(None) for name in _TYPES}
        typed = rows.select(*(column.cast(_TYPES[name]).alias(name) for name, column in named.items()))
        # A lost record may still come to Kafka, so no later audit takes over this finding.
        is_settled = F.coalesce("is_settled", F.lit(kind == UNKNOWN)).alias("is_settled")
        these = typed.select(
            F.lit(kind).alias("kind"),
            "duplicate",
            "record",
            *("outbox_id", "outbox_id_before"),
            *(F.lower(F.hex(name)).alias(name) for name in ("leader", "leader_before")),
            *(F.col(name).alias(f"kafka_{name}") for name in _PLACE),
            "since",
            is_settled,
        )
        these = these.orderBy(*_ORDER).limit(most)
        found = these if found is None else found.unionByName(these)
    assert found is not None  # noqa: S101 - there are kinds
    return found


def lowest(found: DataFrame, *, most: int) -> DataFrame:
    """Return the findings with the lowest ids, at most `most` of each kind."""
    kinds = Window.partitionBy("kind").orderBy(*_ORDER)
    return found.withColumn("number", F.row_number().over(kinds)).where(F.col("number") <= most).drop("number")


_ORDER = ("outbox_id", "record", "kafka_topic", "kafka_partition", "kafka_offset")
_TYPES = {
    "duplicate": "string",
    "record": "string",
    "outbox_id": "bigint",
    "outbox_id_before": "bigint",
    "leader": "binary",
    "leader_before": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "since": "timestamp",
    "is_settled": "boolean",
}
