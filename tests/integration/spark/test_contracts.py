"""The contracts on Spark's frames: pandera collects what is wrong there, and `enforce` raises it."""

import pytest
from pyspark.sql import functions as F

from harvest_lib.spark.quality.contracts import AUDIT_SUMMARY, FLIGHTS, OUTBOX, ContractBroken

pytestmark = [pytest.mark.full, pytest.mark.spark]

TYPES = {"integer": "int", "bigint": "bigint", "double": "double", "text": "string", "timestamp": "timestamp"}
TYPES["texts"] = "array<string>"
GOOD = {"integer": 10, "bigint": 0, "double": 0.0, "text": "EWR", "texts": ["event-id"], "timestamp": None}


def frame(spark, contract, **changes):
    """A frame of two rows, the second of them with changed columns."""
    good = {name: GOOD[column.kind] for name, column in contract.columns.items()}
    if contract is FLIGHTS:
        good |= {"year": 2013, "flight_id": 1}
    schema = ", ".join(f"{name} {TYPES[column.kind]}" for name, column in contract.columns.items())
    found = spark.createDataFrame([tuple(good.values()), tuple((good | changes).values())], schema)
    times = [name for name, column in contract.columns.items() if column.kind == "timestamp"]
    return found.withColumns(dict.fromkeys(times, F.current_timestamp()))


@pytest.mark.full
@pytest.mark.parametrize(
    "contract",
    [FLIGHTS, pytest.param(OUTBOX, marks=pytest.mark.gate), AUDIT_SUMMARY],
    ids=lambda contract: contract.name,
)
def test_what_is_as_it_should_be_passes(spark, contract):
    assert contract.enforce(frame(spark, contract)).count() == 2
    nothing = frame(spark, contract).where("false")
    with pytest.raises(ContractBroken, match="has no rows"):
        contract.enforce(nothing)
    assert contract.enforce(nothing, allow_empty=True).count() == 0


@pytest.mark.parametrize(
    ("contract", "changes", "column", "check"),
    [
        (FLIGHTS, {"distance": None}, "distance", "not_nullable"),
        (FLIGHTS, {"distance": 20_001}, "distance", "less_than_or_equal_to(20000)"),
        (FLIGHTS, {"month": 0}, "month", "greater_than_or_equal_to(1)"),
        (OUTBOX, {"kafka_key": None}, "kafka_key", "not_nullable"),
        (OUTBOX, {"kafka_key": "k" * 101}, "kafka_key", "str_length"),
        (OUTBOX, {"kafka_value": "v" * 10_001}, "kafka_value", "str_length"),
        (OUTBOX, {"kafka_header_keys": ["a", "b"]}, "outbox rows", "as_many_header_keys_as_values"),
        (AUDIT_SUMMARY, {"lost": -1}, "lost", "greater_than_or_equal_to(0)"),
        (AUDIT_SUMMARY, {"lost": 8, "keys": 1, "keys_with_gaps": 1}, "audit summary", "no_more_lost_than_committed"),
    ],
)
def test_what_is_not_is_named_with_its_check(spark, contract, changes, column, check):
    with pytest.raises(ContractBroken) as caught:
        contract.enforce(frame(spark, contract, **changes))
    assert [(failure.column, failure.check[: len(check)]) for failure in caught.value.failures] == [(column, check)]


def test_a_column_of_another_type_or_none_is_named(spark):
    good = frame(spark, OUTBOX)
    with pytest.raises(ContractBroken, match=r"kafka_key: dtype\(int\), not text") as caught:
        OUTBOX.enforce(good.withColumn("kafka_key", F.lit(1)))
    assert len(caught.value.failures) == 1
    with pytest.raises(ContractBroken, match=r"kafka_header_keys: dtype\(array<int>\), not texts"):
        OUTBOX.enforce(good.withColumn("kafka_header_keys", F.array(F.lit(1))))
    with pytest.raises(ContractBroken, match="kafka_key: is missing"):
        OUTBOX.enforce(good.drop("kafka_key"))
    assert OUTBOX.enforce(good.drop("id", "create_time")).count() == 2
