"""Refusals of the contracts, in pandas, and that both models of each say the same."""

import uuid
from datetime import UTC, datetime

import pandas as pd
import pytest

from harvest_lib.audit.result_queries import CREATE_TABLES
from harvest_lib.spark.audit import AuditSummary
from harvest_lib.spark.flights.source import FLIGHT_COLUMNS
from harvest_lib.spark.quality.contracts import (
    AUDIT_SUMMARY,
    FLIGHTS,
    OUTBOX,
    AuditSummaryModel,
    AuditSummarySparkModel,
    ContractBroken,
    FlightsModel,
    FlightsSparkModel,
    OutboxModel,
    OutboxSparkModel,
)
from harvest_lib.spark.quality.expectations import expect_audit

pytestmark = pytest.mark.quick

FLIGHT = {
    **dict.fromkeys(FLIGHT_COLUMNS, 10),
    "year": 2013,
    "carrier": "UA",
    "tail_number": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "time_hour": datetime(2013, 1, 1, 10, tzinfo=UTC),
}
RECORD = {
    "id": 1,
    "create_time": datetime(2013, 1, 1, tzinfo=UTC),
    "kafka_topic": "flights",
    "kafka_key": "N14228",
    "kafka_value": "{}",
    "kafka_header_keys": ["event-id"],
    "kafka_header_values": ["1"],
}
SUMMARY = {
    **{name: 0 for name, column in AUDIT_SUMMARY.columns.items() if column.kind == "bigint"},
    "audit_id": "nightly",
    "at": datetime(2013, 1, 1, tzinfo=UTC),
    "records": 7,
    "committed": 7,
    **dict.fromkeys(["delay_p50_ms", "delay_p95_ms", "delay_p99_ms", "delay_max_ms"]),
    "backlog_age_seconds": 0.0,
}
GOOD = {FLIGHTS: FLIGHT, OUTBOX: RECORD, AUDIT_SUMMARY: SUMMARY}


def frame(contract, **changes):
    """A frame of three rows, the last of them changed."""
    return pd.DataFrame([GOOD[contract], GOOD[contract], {**GOOD[contract], **changes}])


@pytest.mark.parametrize("contract", GOOD, ids=lambda contract: contract.name)
def test_what_is_as_it_should_be_passes(contract):
    assert len(contract.enforce(frame(contract))) == 3
    assert contract.enforce(frame(contract).iloc[:0], allow_empty=True).empty
    with pytest.raises(ContractBroken, match="has no rows"):
        contract.enforce(frame(contract).iloc[:0])


@pytest.mark.parametrize(
    ("contract", "changes", "column", "check"),
    [
        (FLIGHTS, {"distance": "far"}, "distance", "dtype"),
        (FLIGHTS, {"distance": None}, "distance", "not_nullable (1 rows)"),
        (FLIGHTS, {"distance": 20_001}, "distance", "less_than_or_equal_to(20000) (1 rows)"),
        (FLIGHTS, {"dep_delay": 2**40}, "dep_delay", "in_range(-2147483648, 2147483647) (1 rows)"),
        (FLIGHTS, {"month": 13}, "month", "less_than_or_equal_to(12) (1 rows)"),
        (FLIGHTS, {"month": 0}, "month", "greater_than_or_equal_to(1) (1 rows)"),
        (FLIGHTS, {"carrier": None}, "carrier", "not_nullable (1 rows)"),
        (FLIGHTS, {"time_hour": "2013-01-01"}, "time_hour", "dtype"),
        (OUTBOX, {"kafka_key": None}, "kafka_key", "not_nullable (1 rows)"),
        (OUTBOX, {"kafka_key": "k" * 101}, "kafka_key", "str_length(None, 100) (1 rows)"),
        (OUTBOX, {"kafka_topic": ""}, "kafka_topic", "str_length(1, 249) (1 rows)"),
        (OUTBOX, {"kafka_value": "v" * 10_001}, "kafka_value", "str_length(None, 10000) (1 rows)"),
        (OUTBOX, {"kafka_value": b"v"}, "kafka_value", "dtype"),
        (OUTBOX, {"id": 1.5}, "id", "dtype"),
        (OUTBOX, {"kafka_header_keys": "event-id"}, "kafka_header_keys", "texts (1 rows)"),
        (OUTBOX, {"kafka_header_keys": [1]}, "kafka_header_keys", "texts (1 rows)"),
        (OUTBOX, {"kafka_header_keys": ["a", "b"]}, "outbox rows", "as_many_header_keys_as_values"),
        (AUDIT_SUMMARY, {"lost": -1}, "lost", "greater_than_or_equal_to(0) (1 rows)"),
        (AUDIT_SUMMARY, {"lost": "0"}, "lost", "dtype"),
        (AUDIT_SUMMARY, {"lost": 8, "keys": 1, "keys_with_gaps": 1}, "audit summary", "no_more_lost_than_committed"),
        (AUDIT_SUMMARY, {"lost": 1}, "audit summary", "gaps_in_keys_are_those_of_records"),
        (
            AUDIT_SUMMARY,
            {"lost": 1, "keys": 1, "keys_with_gaps": 2},
            "audit summary",
            "no_more_keys_with_gaps_than_keys",
        ),
        (AUDIT_SUMMARY, {"foreign_messages": 8}, "audit summary", "no_more_foreign_messages_than_records"),
        (AUDIT_SUMMARY, {"backlog_age_seconds": None}, "backlog_age_seconds", "not_nullable (1 rows)"),
    ],
)
def test_what_is_not_is_named_with_its_check_and_without_its_value(contract, changes, column, check):
    with pytest.raises(ContractBroken) as caught:
        contract.enforce(frame(contract, **changes))
    assert [(failure.column, failure.check[: len(check)]) for failure in caught.value.failures] == [(column, check)]
    for value in changes.values():
        assert not isinstance(value, str) or len(value) < 5 or value not in str(caught.value).replace("event-id", "")


def test_several_failures_are_told_together():
    with pytest.raises(ContractBroken) as caught:
        FLIGHTS.enforce(frame(FLIGHTS, month=13, carrier=None))
    assert {failure.column for failure in caught.value.failures} == {"month", "carrier"}


@pytest.mark.parametrize("contract", GOOD, ids=lambda contract: contract.name)
def test_a_column_that_is_missing_is_named(contract):
    name = next(name for name, column in contract.columns.items() if column.required)
    with pytest.raises(ContractBroken, match=f"{name}: is missing"):
        contract.enforce(frame(contract).drop(columns=name))


def test_what_may_be_null_or_absent_may():
    nullable = {name: None for name, column in FLIGHTS.columns.items() if column.nullable}
    assert len(nullable) == 6
    FLIGHTS.enforce(frame(FLIGHTS, **nullable))
    FLIGHTS.enforce(pd.DataFrame([{**FLIGHT, **nullable}]))
    OUTBOX.enforce(frame(OUTBOX).drop(columns=["id", "create_time"]))


def test_pandas_types_of_the_same_content_are_the_same():
    rows = frame(FLIGHTS, dep_delay=None).assign(flight_id=[1, 2, 3], batch="flights-2013-01")
    assert rows["dep_delay"].dtype == "float64"
    FLIGHTS.enforce(rows)
    summary = frame(AUDIT_SUMMARY).assign(backlog_age_seconds=[0, 1, 2], delay_p50_ms=[None, 1, 2.5])
    AUDIT_SUMMARY.enforce(summary)
    AUDIT_SUMMARY.enforce(summary.assign(lost=1, keys=None, keys_with_gaps=None))
    OUTBOX.enforce(frame(OUTBOX).assign(leader_id=uuid.uuid4()))


@pytest.mark.parametrize(
    ("contract", "pandas_model", "spark_model"),
    [
        (FLIGHTS, FlightsModel, FlightsSparkModel),
        (OUTBOX, OutboxModel, OutboxSparkModel),
        (AUDIT_SUMMARY, AuditSummaryModel, AuditSummarySparkModel),
    ],
)
def test_both_models_have_the_columns_of_the_contract(contract, pandas_model, spark_model):
    pandas_columns, spark_columns = pandas_model.to_schema().columns, spark_model.to_schema().columns
    assert list(pandas_columns) == list(spark_columns) == list(contract.columns)
    for name, column in contract.columns.items():
        both = (pandas_columns[name], spark_columns[name])
        assert all((each.nullable, each.required) == (column.nullable, column.required) for each in both)


def test_the_contract_of_the_summary_is_the_table_and_the_value():
    names = list(AUDIT_SUMMARY.columns)
    assert names == list(AuditSummary.__dataclass_fields__)
    definition = CREATE_TABLES.split("harvest_audit.summary (")[1].split(");")[0]
    assert names == [line.split()[0] for line in definition.strip().splitlines()]


def test_expectations_of_no_audit_are_refused(tmp_path):
    with pytest.raises(ContractBroken, match="has no rows"):
        expect_audit(frame(AUDIT_SUMMARY).iloc[:0], docs=tmp_path)
