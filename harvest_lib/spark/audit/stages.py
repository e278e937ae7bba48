"""The stages of an audit in Spark. Each stage writes its result to disk, as Parquet, for the next stage.

    Kafka ─► copies ─► (sequenced: committed copies) ──────► by record, with Postgres ─► verdicts
                                                             └► by key's sequence ────────► stepped ─► found

Kafka is read once. In an audit that continues an earlier audit the stages also get the earlier state: earlier copies of
records that have further copies now, the ends of the sequences, and pending messages.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from harvest_lib.spark.audit import comparison
from harvest_lib.spark.audit.committed import Taken
from harvest_lib.spark.audit.comparison import COPY, COPY_NUMBERS, KEY_NUMBERS
from harvest_lib.spark.audit.kafka_side import Logs, SparkTopics, end_of
from harvest_lib.spark.audit.state import Past
from harvest_lib.spark.sequenced import carried, decided, is_acknowledgement

_PLACE = ("topic", "partition", "offset")
_SHUFFLE_RECORDS = 250_000
_MOST_SHUFFLE_PARTS = 4_000
_FORGETS = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
_BROADCAST_RECORDS = 1_000_000

TOTALS = (*COPY_NUMBERS, "foreign", "committed", "unknown", "other_contents")
"""The numbers that an audit adds to the numbers of earlier audits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The results of the stages: the `numbers` of all audits so far, the findings in `found` (None without any), and
    the numbers in `settled`, to which the next audit adds."""

    numbers: Mapping[str, Any]
    found: DataFrame | None
    settled: Mapping[str, int]


class Stages:
    """The stages of an audit. `work` is the folder for temporary files, `left` for files that the next audit reads."""

    def __init__(
        self, spark: SparkSession, source: SparkTopics, *, work: Path, left: Path | None, past: Past | None
    ) -> None:
        self._spark, self._source, self._past = spark, source, past
        self._work, self._left = work, left

    def compare(self, logs: Logs, before: Logs, taken: Taken, *, most: int) -> Compared:
        """Read Kafka and Postgres, and compare. `logs` are the ranges to read, `before` the ranges that ended before
        the snapshot."""
        size = sum(log.high - log.low for log in logs.values())
        self._configure(size)
        seen = self._copies(logs, before, taken)
        observed = self._read("copies").withColumn(
            "is_judged",
            F.col("is_settled") if taken.floor is None else F.col("is_settled") & (F.col("outbox_id") >= taken.floor),
        )
        again = self._again(observed)
        committed = taken.read(self._spark, self._of_past("open"))
        verdicts, of_records = self._verdicts("verdicts", observed, committed, again)
        other, of_others = None, dict.fromkeys(("other_contents", "settled_other_contents"), 0)
        if of_records["differing"]:
            other, of_others = self._others(observed, verdicts)
            observed = observed.join(other.select(*_PLACE), list(_PLACE), "left_anti")
            verdicts, of_records = self._verdicts("verdicts-without-others", observed, committed, again)
        repeated = (
            comparison.repeats(observed, verdicts.where("is_repeated"), again) if of_records["repeated"] else None
        )
        lost = taken.keys_of(self._spark, verdicts.where("is_lost").select("record")) if of_records["lost"] else None
        knows_keys = lost is not None or not of_records["lost"]
        stepped, of_copies = self._kept(
            "stepped",
            comparison.by_sequence(
                observed,
                repeated,
                self._of_past("ends"),
                unknown=verdicts.where("is_unknown") if of_records["unknown"] else None,
                lost=lost,
                other=other,
            ),
            comparison.copy_numbers(),
            "duplicate IS NOT NULL OR is_reordered" + (" OR is_end" if self._left else ""),
        )
        of_keys = {} if knows_keys else dict.fromkeys(KEY_NUMBERS)
        numbers = {**seen, **of_records, **of_copies, **of_keys, **of_others}
        totals = {name: numbers[name] for name in TOTALS}
        settled = {name: numbers.get(f"settled_{name}", numbers[name]) for name in TOTALS}
        for name, before_this in (self._past.numbers if self._past else {}).items():
            totals[name] += before_this
            settled[name] += before_this
        found = self._found(verdicts, stepped, observed, other, most) if _is_worth({**numbers, **totals}) else None
        if self._left is not None:
            comparison.ends_of(stepped).write.parquet(str(self._left / "ends"))
            verdicts.where("is_open").select("record").write.parquet(str(self._left / "open"))
            if found is not None:
                found.where("is_settled").write.parquet(str(self._left / "found"))
            if other is not None:  # messages with other contents are no copies for later audits either
                observed.drop("is_judged").write.parquet(str(self._work / "true-copies"))
                shutil.rmtree(self._left / "copies")
                shutil.move(self._work / "true-copies", self._left / "copies")
        return Compared(numbers={**numbers, **totals}, found=found, settled=settled)

    def _verdicts(
        self, name: str, observed: DataFrame, committed: DataFrame, again: DataFrame | None
    ) -> tuple[DataFrame, dict[str, Any]]:
        return self._kept(
            name,
            comparison.by_record(observed, committed, again),
            comparison.record_numbers(),
            "is_lost OR is_unknown OR is_repeated OR has_others" + (" OR is_open" if self._left else ""),
        )

    def _others(self, observed: DataFrame, verdicts: DataFrame) -> tuple[DataFrame, dict[str, Any]]:
        """Return the messages with a content that was not committed, and their numbers."""
        place = str(self._work / "others")
        comparison.others(observed, verdicts.where("has_others")).write.parquet(place)
        other = self._spark.read.parquet(place)
        settled = other.where("is_settled").count()
        return other, {"other_contents": other.count(), "settled_other_contents": settled}

    def _configure(self, size: int) -> None:
        parts = -(-size // _SHUFFLE_RECORDS)
        for name, value in {
            "spark.sql.shuffle.partitions": min(
                _MOST_SHUFFLE_PARTS, max(self._spark.sparkContext.defaultParallelism, parts)
            ),
            # This rule replaces parts of a plan that turn out to be empty, and loses their observations.
            "spark.sql.adaptive.optimizer.excludedRules": _FORGETS,
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        }.items():
            self._spark.conf.set(name, str(value))

    def _copies(self, logs: Logs, before: Logs, taken: Taken) -> dict[str, Any]:
        """Write the copies in Kafka to disk; return the counts of messages. Of a sequenced topic only committed copies
        are written."""
        observation = Observation("kafka")
        rows = self._source.read(self._spark, logs, before, observation, id_header=taken.id_header)
        begins = end_of(before)
        copies = self._place("copies")
        rows.withColumn("is_settled", F.col("offset") < begins).write.parquet(str(copies))
        seen = observation.get
        numbers = {"read": seen["messages"], "foreign": seen["foreign"], "settled_foreign": seen["settled_foreign"]}
        pending = self._of_past("pending")
        if not seen["sequenced"] and pending is None:
            return numbers
        log = self._work / "log"
        shutil.move(copies, log)
        rows = self._spark.read.parquet(str(log))
        rows = rows if pending is None else rows.unionByName(pending, allowMissingColumns=True)
        decided(rows).withColumn(
            "is_settled",
            F.coalesce(F.col("settled_at") < begins, F.lit(False)),
        ).write.parquet(str(self._work / "decided"))
        verdicts = self._spark.read.parquet(str(self._work / "decided"))
        if self._left is not None:
            carried(verdicts, begins).drop("is_settled").write.parquet(str(self._left / "pending"))
        ours = verdicts.where(F.col("is_committed") & ~is_acknowledgement() & (F.col("offset") >= 0))
        ours.where(F.col("record").isNotNull()).select(*COPY, "is_settled").write.parquet(str(copies))
        strange = ours.where(F.col("record").isNull()).groupBy().agg(F.count("*"), F.count_if("is_settled")).first()
        assert strange is not None  # noqa: S101 - an aggregate of everything returns a row
        return {
            **numbers,
            "foreign": numbers["foreign"] + strange[0],
            "settled_foreign": numbers["settled_foreign"] + strange[1],
        }

    def _again(self, observed: DataFrame) -> DataFrame | None:
        """Return the copies of the records in `observed` that earlier audits read, None if there are no such copies."""
        if self._past is None:
            return None
        about = observed.agg(F.min("record"), F.max("record"), F.count("record")).first()
        assert about is not None  # noqa: S101 - as above
        lowest, highest, count = about
        if not count:
            return None
        came = observed.select("record").distinct()
        history = self._spark.read.parquet(*self._past.copies).where(F.col("is_settled"))
        # Ids ascend with time, so Spark skips nearly all of the history by Parquet's statistics.
        history = history.where(F.col("record").between(lowest, highest))
        came = F.broadcast(came) if count <= _BROADCAST_RECORDS else came
        place = self._work / "again"
        history.join(came, "record", "left_semi").select(*COPY).write.parquet(str(place))
        again = self._spark.read.parquet(str(place))
        return None if again.isEmpty() else again

    def _kept(
        self, name: str, frame: DataFrame, numbers: Sequence[Column], worth: str
    ) -> tuple[DataFrame, dict[str, Any]]:
        """Compute a frame once. Return its rows that meet the condition `worth`, and `numbers` over all its rows."""
        observation = Observation(name)
        first, *rest = numbers
        frame.observe(observation, first, *rest).where(worth).write.parquet(str(self._work / name))
        return self._spark.read.parquet(str(self._work / name)), observation.get

    def _found(
        self, verdicts: DataFrame, stepped: DataFrame, observed: DataFrame, other: DataFrame | None, most: int
    ) -> DataFrame:
        found = comparison.findings(verdicts, stepped, observed, other, most=most)
        if (before := self._of_past("found")) is not None:
            found = comparison.lowest(found.unionByName(before), most=most)
        found.coalesce(1).write.parquet(str(self._work / "found"))
        return self._spark.read.parquet(str(self._work / "found"))

    def _place(self, name: str) -> Path:
        return (self._left or self._work) / name

    def _read(self, name: str) -> DataFrame:
        return self._spark.read.parquet(str(self._place(name)))

    def _of_past(self, name: str) -> DataFrame | None:
        folder = self._past.latest(name) if self._past else None
        return None if folder is None else self._spark.read.parquet(folder)


def _is_worth(numbers: Mapping[str, Any]) -> bool:
    found = (
        "lost",
        "unknown",
        "other_contents",
        "reordered",
        *(name for name in COPY_NUMBERS if name.startswith("duplicates")),
    )
    return any(numbers[name] for name in found)
