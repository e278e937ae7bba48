"""The error that Spark has turned into text is found again, with its class and its three parts."""

import pytest

from harvest_lib.errors import ConfigError, DatabaseUnavailable, HarvestError, PositionLost
from harvest_lib.spark import errors
from harvest_lib.spark.errors import BatchConflict

pytestmark = pytest.mark.quick

CONFLICT = BatchConflict("batch b has other data", evidence="10 rows of 12\nLINE 1: SELECT", next_step="take a new id")


def spark_says(error):
    """Return what Spark makes of an error of a data source."""
    kind = type(error)
    return Exception(
        f"[PYTHON_DATA_SOURCE_ERROR] Failed when running Python data source: Traceback (most recent call last):\n"
        f'  File "worker.py", line 1, in main\n    raise error\n{kind.__module__}.{kind.__name__}: {error}\n\n'
        "SQLSTATE: 38000\n\tat org.apache.spark.sql.errors.QueryExecutionErrors$.x(QueryExecutionErrors.scala:1)"
    )


@pytest.mark.parametrize(
    "error",
    [
        CONFLICT,
        PositionLost("a segment is gone", evidence="", next_step="read again;\n  or stop"),
        DatabaseUnavailable("Postgres does not answer", evidence="timeout", next_step="wait"),
        HarvestError("it failed", next_step="look"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_found_in_what_spark_raises(error):
    found = errors.of(spark_says(error))
    assert type(found) is type(error)
    assert (found.cause, found.evidence, found.next_step) == (error.cause, error.evidence, error.next_step)
    assert str(found) == str(error)


def test_a_setting_keeps_its_field():
    found = errors.of(spark_says(ConfigError("'none' is no number", field="shards", next_step="correct the option")))
    assert isinstance(found, ConfigError)
    assert (found.field, found.evidence) == ("shards", "field `shards`")


def test_of_several_the_last_is_the_one_that_was_raised():
    first, last = spark_says(DatabaseUnavailable("away", evidence="timeout", next_step="wait")), spark_says(CONFLICT)
    chained = Exception(f"{first}\n\nDuring handling of the above exception, another exception occurred:\n\n{last}")
    assert isinstance(errors.of(chained), BatchConflict)


def test_an_error_that_was_not_wrapped_is_returned():
    assert errors.of(CONFLICT) is CONFLICT


@pytest.mark.parametrize(
    "text", ["division by zero", "harvest_lib.errors.NoSuchError: a\n  next step: b", "x.y.BatchConflict: a"]
)
def test_other_errors_are_none_of_ours(text):
    assert errors.of(Exception(text)) is None
