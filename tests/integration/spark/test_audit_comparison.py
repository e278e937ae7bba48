"""The audit by Spark against the audit in one process: on random logs both count the same."""

import random

import pytest
from pyspark.sql import functions as F

from harvest_lib.audit import CommittedRecord, ObservedRecord
from harvest_lib.audit import audit as audit_in_one_process
from harvest_lib.spark.audit import comparison

pytestmark = [pytest.mark.full, pytest.mark.spark]

CASES, IDS = 300, 9


def random_case(dice):
    committed = {record: dice.choice([1, 1, 1, None]) for record in dice.sample(range(IDS), dice.randrange(IDS))}
    log = [
        (
            dice.choice("tu"),
            dice.randrange(2),
            dice.choice([b"a", b"a", b"b", b""]),
            dice.randrange(IDS),
            dice.choice("XYZ"),
            dice.choice([1, 1, 1, 1, 2]),
        )
        for _ in range(dice.randrange(25))
    ]
    # The keys of those that are lost; what came has its own.
    keys = {record: (dice.choice("tu"), dice.choice([b"a", b"b", b""])) for record in committed}
    return committed, log, keys


def counted_keys(committed, log, keys):
    """Count the keys of a case, and those with gaps, one after another."""
    every = {(topic, key) for topic, _, key, *_ in log}
    others = [each for each in log if (committed.get(each[3]) or each[5]) != each[5]]
    log = [each for each in log if each not in others]
    lost = set(committed) - {record for *_, record, _, _ in log}
    wrong = {keys[record] for record in lost} | {(topic, key) for topic, _, key, *_ in others}
    every |= wrong
    came = {}
    for *sequence, record, _, _ in log:
        earlier = came.setdefault(tuple(sequence), [])
        if record not in earlier:
            earlier.append(record)
    for (topic, _, key), records in came.items():
        if records != sorted(records) or not set(records) <= set(committed):
            wrong.add((topic, key))
    return len(every), len(wrong)


def test_the_comparison_counts_as_that_of_one_process_does(spark):
    dice = random.Random(1)
    cases = [(number, *random_case(dice)) for number in range(CASES)]
    observed, committed = [], []
    for number, ids, log, _ in cases:
        committed += [(number * IDS + each, comparison.MUST_COME, content) for each, content in ids.items()]
        for offset, (topic, partition, key, record, leader, content) in enumerate(log):
            place = (f"{topic}{number}", partition, offset, bytearray(key), content)
            observed.append((number * IDS + record, number * IDS + record, bytearray(leader.encode() * 16), *place))
    columns = "record bigint, outbox_id bigint, leader binary, topic string, partition int, offset bigint, key binary"
    columns += ", content bigint"
    copies = (
        spark.createDataFrame(observed, columns)
        .withColumn("at", F.current_timestamp())
        .withColumns(dict.fromkeys(("is_settled", "is_judged"), F.lit(True)))
    )
    known = spark.createDataFrame(committed, "record bigint, state int, content bigint").withColumns(
        {"since": F.current_timestamp(), "is_new": F.lit(True)}
    )
    differing = comparison.by_record(copies, known).where("has_others")
    other = comparison.others(copies, differing)
    copies = copies.join(other.select("topic", "partition", "offset"), ["topic", "partition", "offset"], "left_anti")
    reported = comparison.by_record(copies, known)
    assert reported.where("has_others").isEmpty()
    keys = [
        (number * IDS + record, f"{topic}{number}", bytearray(key))
        for number, _, _, keys in cases
        for record, (topic, key) in keys.items()
    ]
    lost = reported.where("is_lost").join(
        spark.createDataFrame(keys, "record bigint, topic string, key binary"), "record"
    )
    stepped = comparison.by_sequence(
        copies,
        comparison.repeats(copies, reported.where("is_repeated")),
        unknown=reported.where("is_unknown"),
        lost=lost,
        other=other,
    )
    found = {
        number: dict.fromkeys((*comparison.COPY_NUMBERS, *comparison.KEY_NUMBERS, "other_contents"), 0)
        for number in range(CASES)
    }
    by_record, by_topic = F.floor(F.col("record") / IDS), F.substring("topic", 2, 9).cast("int")
    for rows, case, numbers in (
        (reported, by_record, comparison.record_numbers()),
        (stepped, by_topic, comparison.copy_numbers()),
        (other, by_record, [F.count(F.lit(1)).alias("other_contents")]),
    ):
        for row in rows.groupBy(case.alias("case")).agg(*numbers).collect():
            found[row["case"]] |= row.asDict()
    for number, ids, log, keys in cases:
        if not ids and not log:
            continue
        report = audit_in_one_process(
            [CommittedRecord(each, None, content and bytes([content])) for each, content in ids.items()],
            [
                ObservedRecord(topic, partition, offset, 0, key, record, leader.encode() * 16, bytes([content]))
                for offset, (topic, partition, key, record, leader, content) in enumerate(log)
            ],
        )
        row = found[number]
        for name in ("committed", "lost", "unknown", "other_contents", "reordered"):
            assert row[name] == getattr(report, name), (number, name)
        assert row["ours"] + row["other_contents"] == report.records
        assert (row["keys"], row["keys_with_gaps"]) == counted_keys(ids, log, keys), number
        assert row["duplicates_cross_epoch"] == report.explained_duplicates
        assert row["duplicates_adjacent"] + row["duplicates_separated"] == report.unexplained_duplicates


def test_records_are_shuffled_once_by_id_and_once_by_key_and_only_keys_are_sorted(spark):
    """Most of the cost of an audit of many records: a second shuffle or sort of all of them is noticed here."""
    copies = spark.range(10).select(
        *(F.col("id").alias(name) for name in ("record", "outbox_id", "offset", "content")),
        F.col("id").cast("string").alias("topic"),
        F.col("id").cast("int").alias("partition"),
        *(F.col("id").cast("string").cast("binary").alias(name) for name in ("key", "leader")),
        F.current_timestamp().alias("at"),
        *(F.lit(True).alias(name) for name in ("is_settled", "is_judged")),
    )
    known = spark.range(10).select(
        F.col("id").alias("record"),
        F.lit(comparison.MUST_COME).alias("state"),
        F.col("id").alias("content"),
        F.current_timestamp().alias("since"),
        F.lit(True).alias("is_new"),
    )
    by_record = planned(comparison.by_record(copies, known))
    assert (by_record.count("Exchange"), by_record.count("Sort"), by_record.count("ObjectHash")) == (1, 0, 0)
    by_sequence = planned(comparison.by_sequence(copies))
    assert (by_sequence.count("Exchange"), by_sequence.count("Sort [")) == (1, 1)


def planned(frame):
    return frame._jdf.queryExecution().executedPlan().toString()
