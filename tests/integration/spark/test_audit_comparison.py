"""The audit by Spark against the audit in one process: on random logs both count the same."""

import random

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from harvest_lib.audit import CommittedRecord, ObservedRecord
from harvest_lib.audit import audit as audit_in_one_process
from spark_jobs.audit import comparison

pytestmark = pytest.mark.spark

CASES, IDS = 300, 9


def random_case(dice):
    committed = dice.sample(range(IDS), dice.randrange(IDS))
    log = [
        (
            dice.choice("tu"),
            dice.randrange(2),
            dice.choice([b"a", b"a", b"b", b""]),
            dice.randrange(IDS),
            dice.choice("XYZ"),
        )
        for _ in range(dice.randrange(25))
    ]
    return committed, log


def test_the_comparison_counts_as_that_of_one_process_does(spark):
    dice = random.Random(1)
    cases = [random_case(dice) for _ in range(CASES)]
    observed, committed = [], []
    for number, (ids, log) in enumerate(cases):
        committed += [(number * IDS + each, comparison.MUST_COME) for each in ids]
        for offset, (topic, partition, key, record, leader) in enumerate(log):
            place = (f"{topic}{number}", partition, offset, bytearray(key))
            observed.append((number * IDS + record, number * IDS + record, bytearray(leader.encode() * 16), *place))
    columns = "record bigint, outbox_id bigint, leader binary, topic string, partition int, offset bigint, key binary"
    copies = (
        spark.createDataFrame(observed, columns)
        .withColumn("at", F.current_timestamp())
        .withColumns(dict.fromkeys(("is_settled", "is_judged"), F.lit(True)))  # noqa: FBT003
    )
    known = spark.createDataFrame(committed, "record bigint, state int").withColumns(
        {"since": F.current_timestamp(), "is_new": F.lit(True)}  # noqa: FBT003
    )
    told = comparison.by_record(copies, known)
    stepped = comparison.by_sequence(copies, comparison.repeats(copies, told.where("is_repeated")))
    found = {number: dict.fromkeys(comparison.COPY_NUMBERS, 0) for number in range(CASES)}
    for rows, numbers in ((told, comparison.record_numbers()), (stepped, comparison.copy_numbers())):
        for row in rows.groupBy(F.floor(F.col("record") / IDS).alias("case")).agg(*numbers).collect():
            found[row["case"]] |= row.asDict()
    for number, (ids, log) in enumerate(cases):
        if not ids and not log:
            continue
        report = audit_in_one_process(
            [CommittedRecord(each) for each in ids],
            [
                ObservedRecord(topic, partition, offset, 0, key, record, leader.encode() * 16)
                for offset, (topic, partition, key, record, leader) in enumerate(log)
            ],
        )
        row = found[number]
        for name in ("committed", "lost", "unknown", "reordered"):
            assert row[name] == getattr(report, name), (number, name)
        assert row["ours"] == report.records
        assert row["duplicates_cross_epoch"] == report.explained_duplicates
        assert row["duplicates_adjacent"] + row["duplicates_separated"] == report.unexplained_duplicates


def test_records_are_shuffled_once_by_id_and_once_by_key_and_only_keys_are_sorted(spark):
    """What an audit of many records costs: a second shuffle or sort of all of them is noticed here."""
    copies = spark.range(10).select(
        *(F.col("id").alias(name) for name in ("record", "outbox_id", "offset")),
        F.lit("t").alias("topic"),
        F.lit(0).alias("partition"),
        *(F.col("id").cast("string").cast("binary").alias(name) for name in ("key", "leader")),
        F.current_timestamp().alias("at"),
        *(F.lit(True).alias(name) for name in ("is_settled", "is_judged")),  # noqa: FBT003
    )
    known = spark.range(10).select(
        F.col("id").alias("record"),
        F.lit(comparison.MUST_COME).alias("state"),
        F.current_timestamp().alias("since"),
        F.lit(True).alias("is_new"),  # noqa: FBT003
    )
    by_record = planned(comparison.by_record(copies, known))
    assert (by_record.count("Exchange"), by_record.count("Sort"), by_record.count("ObjectHash")) == (1, 0, 0)
    by_sequence = planned(comparison.by_sequence(copies))
    assert (by_sequence.count("Exchange"), by_sequence.count("Sort [")) == (1, 1)


def planned(frame):
    return frame._jdf.queryExecution().executedPlan().toString()
