"""Compare what was committed with what is in Kafka: windows and aggregates, in one pass.

Two shuffles: one by record, in which what was committed meets its copies, and one by key's sequence, which finds steps
back. Nothing is collected but the numbers; sorts spill to disk, so that memory is bounded
whatever the size. A key of which there are billions of records is sorted by one task.

A *record* is what is compared: an outbox id, or what a header of the record's own says. Its *sequence* is that of its
key in one partition of a topic; within a sequence outbox ids ascend. Knows neither Kafka nor Postgres.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

MUST_COME, WAITS, PARKED = "must come", "waits", "parked"
"""What is known of a committed record: its harvester has passed it, has not passed it yet, or could not send it."""

ADJACENT, SEPARATED, CROSS_EPOCH = "adjacent", "separated", "cross_epoch"
"""What a second copy of a record is. A copy that another term sent is the third, wherever it is."""

LOST, DUPLICATE, REORDERED, UNKNOWN = "lost", "duplicate", "reordered", "unknown"
"""The kinds of findings."""

_PLACE = ("topic", "partition", "offset")
_PERCENTILES = (0.5, 0.95, 0.99)
_ACCURACY = 10_000


def compare(observed: DataFrame, committed: DataFrame) -> DataFrame:
    """Return a row for each copy in Kafka and each committed record that is not there, with what is to be said of it.

    `observed` has record, outbox_id, leader, topic, partition, offset, key, at, and `is_judged`: false for what may
    have been committed though `committed` does not have it, being too new or dropped since. `committed` has record,
    since and state.
    """
    rows = observed.unionByName(committed.withColumn("is_known", F.lit(True)), allowMissingColumns=True)  # noqa: FBT003
    # What was committed has no topic, so that it comes first. Both windows have one order: each part is sorted once.
    in_log = Window.partitionBy("record").orderBy("topic", "partition", "key", "offset")
    up_to_here = in_log.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    in_sequence = Window.partitionBy("record", "topic", "partition", "key").orderBy("offset")
    is_known = F.coalesce(F.first("is_known").over(up_to_here), F.lit(False))  # noqa: FBT003
    copies = rows.select(
        *("record", "outbox_id", "leader", *_PLACE, "at", "is_judged"),
        *(F.first(name).over(up_to_here).alias(name) for name in ("since", "state")),
        is_known.alias("is_known"),
        (F.row_number().over(in_log) - is_known.cast("int")).alias("copy"),
        F.lag("leader").over(in_log).alias("leader_before"),
        F.collect_set("leader").over(in_log.rowsBetween(Window.unboundedPreceding, -1)).alias("leaders_before"),
        F.lead("topic").over(in_log).alias("next_topic"),
        F.row_number().over(in_sequence).alias("copy_in_sequence"),
        # What is not in Kafka has no sequence; its record spreads it over the parts of the next shuffle.
        F.coalesce("key", F.col("record").cast("string").cast("binary")).alias("sequence_key"),
    ).where(F.col("topic").isNotNull() | F.col("next_topic").isNull())
    sequence = Window.partitionBy("topic", "sequence_key", "partition").orderBy("offset")
    so_far = sequence.rowsBetween(Window.unboundedPreceding, -1)
    stepped = copies.select(
        "*",
        F.lag("record").over(sequence).alias("record_before"),
        F.last(F.when(F.col("copy_in_sequence") == 1, F.col("outbox_id")), ignorenulls=True)
        .over(so_far)
        .alias("outbox_id_before"),
    )
    is_there, known, first = F.col("topic").isNotNull(), F.col("is_known"), F.col("copy") == 1
    return stepped.select(
        "record",
        *("outbox_id", "outbox_id_before", "leader", "leader_before", *_PLACE),
        "since",
        is_there.alias("is_there"),
        (known & (~is_there | first)).alias("is_committed"),
        (~is_there & (F.col("state") == MUST_COME)).alias("is_lost"),
        (~is_there & (F.col("state") == WAITS)).alias("is_waiting"),
        (is_there & first & ~known & F.col("is_judged")).alias("is_unknown"),
        F.when(
            is_there & ~first,
            F.when(~F.array_contains("leaders_before", F.col("leader")), CROSS_EPOCH)
            .when(F.col("record_before") == F.col("record"), ADJACENT)
            .otherwise(SEPARATED),
        ).alias("duplicate"),
        F.when(F.col("copy_in_sequence") == 1, F.col("outbox_id") < F.col("outbox_id_before")).alias("is_reordered"),
        F.when(known & is_there & first, _milliseconds("at") - _milliseconds("since")).alias("delay_ms"),
    )  # fmt: skip


def _milliseconds(name: str) -> Column:
    return F.unix_micros(name) / 1000


def numbers() -> list[Column]:
    """Return the aggregates of a comparison, by the names that `harvest_audit.summary` has for them."""
    return [
        _count(F.col("is_there")).alias("ours"),
        _count(F.col("is_committed")).alias("committed"),
        _count(F.col("is_lost")).alias("lost"),
        *(
            _count(F.col("duplicate") == kind).alias(f"duplicates_{kind}")
            for kind in (ADJACENT, SEPARATED, CROSS_EPOCH)
        ),
        _count(F.col("is_reordered")).alias("reordered"),
        _count(F.col("is_unknown")).alias("unknown"),
        _count(F.col("is_waiting")).alias("backlog_records"),
        F.unix_micros(F.min(F.when(F.col("is_waiting"), F.col("since")))).alias("backlog_since"),
        F.percentile_approx("delay_ms", list(_PERCENTILES), _ACCURACY).alias("delays_ms"),
        F.max("delay_ms").alias("delay_max_ms"),
    ]


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, 1))


def findings(compared: DataFrame, observation: Observation, *, most: int) -> DataFrame:
    """Return a row for each thing found, at most so many of each kind, the lowest first; a copy can be two of them.

    The numbers of all of them come by `observation` with the first use of what is returned.
    """
    first, *rest = numbers()
    found = compared.observe(observation, first, *rest).select(
        "*",
        F.explode(
            F.array_compact(
                F.array(
                    F.when(F.col("is_lost"), F.lit(LOST)),
                    F.when(F.col("duplicate").isNotNull(), F.lit(DUPLICATE)),
                    F.when(F.col("is_reordered"), F.lit(REORDERED)),
                    F.when(F.col("is_unknown"), F.lit(UNKNOWN)),
                )
            )
        ).alias("kind"),
    )
    lowest = Window.partitionBy("kind").orderBy("outbox_id", "record", *_PLACE)
    return (
        found.withColumn("number", F.row_number().over(lowest))
        .where(F.col("number") <= most)
        .select(
            "kind",
            "duplicate",
            F.col("record").cast("string").alias("record"),
            "outbox_id",
            "outbox_id_before",
            *(F.lower(F.hex(name)).alias(name) for name in ("leader", "leader_before")),
            *(F.col(name).alias(f"kafka_{name}") for name in _PLACE),
            "since",
        )
    )


def delays_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the percentiles of an observation by their names; None where nothing was delivered."""
    middle, high, highest = found["delays_ms"] or (None,) * len(_PERCENTILES)
    return {
        "delay_p50_ms": middle,
        "delay_p95_ms": high,
        "delay_p99_ms": highest,
        "delay_max_ms": found["delay_max_ms"],
    }
