"""Filters that Spark leaves to a read: Postgres evaluates them, and Arrow where rows come from the archive.

These are comparisons of `id` and `create_time` with a value, lists of ids, topics and keys, and beginnings of topics
and keys. Both evaluations give what Spark gives: texts are compared byte by byte, and a time without an end, which
Spark reads as null, fits no comparison.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from harvest_lib.spark.data_source.windows import HIGHEST_ID, LOWEST_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql

_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"

_COMPARED = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_TEXTS = ("kafka_topic", "kafka_key")
_COLUMNS = ("id", "create_time", *_TEXTS)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a column: `in`, `starts`, `present` or a comparison, with its values."""

    column: str
    operator: str
    values: tuple[Any, ...] = ()


def is_pushing() -> bool:
    """Return True in the worker that Spark asks about filters. Other workers must not have `pushFilters`: where
    `spark.sql.python.filterPushdown.enabled` is off, Spark refuses a reader that has it."""
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _WORKER in sys.modules or getattr(started, "name", None) == _WORKER


def condition(given: Any) -> Condition | None:
    """Return the condition for a filter of Spark; None if Spark has to evaluate it."""
    path: tuple[str, ...] = getattr(given, "attribute", ())
    kind = type(given).__name__
    if len(path) != 1:
        return None
    (column,) = path
    if kind == "IsNotNull":
        return Condition(column, "present") if column in _COLUMNS else None
    values = tuple(given.value) if kind == "In" else (getattr(given, "value", None),)
    if not all(_is_of(column, each) for each in values):
        return None
    if column == "create_time":
        values = tuple(each.astimezone(UTC) for each in values)
    if kind in ("In", "EqualTo"):
        return Condition(column, "in", values)
    if kind in _COMPARED and column not in _TEXTS:
        return Condition(column, _COMPARED[kind], values)
    return Condition(column, "starts", values) if kind == "StringStartsWith" else None


def _is_of(column: str, value: Any) -> bool:
    """Return True if Postgres can compare the column with the value."""
    if column == "id":
        return isinstance(value, int) and LOWEST_ID <= value <= HIGHEST_ID
    if column == "create_time":
        return isinstance(value, datetime) and value.tzinfo is not None
    return column in _TEXTS and isinstance(value, str) and "\0" not in value and _is_unicode(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def ids_of(conditions: Iterable[Condition]) -> tuple[int, int]:
    """Return the lowest and the highest id that all conditions on `id` permit."""
    low, high = LOWEST_ID, HIGHEST_ID
    for each in conditions:
        if each.column != "id" or not each.values:
            continue
        if each.operator == "in":
            low, high = max(low, min(each.values)), min(high, max(each.values))
        elif each.operator in (">", ">="):
            low = max(low, each.values[0] + (each.operator == ">"))
        else:
            high = min(high, each.values[0] - (each.operator == "<"))
    return low, high


def as_sql(each: Condition) -> "sql.Composable":
    """Return a condition as SQL without parameters, each % doubled."""
    from psycopg import sql  # noqa: PLC0415 - a plan without filters does not need it

    from harvest_lib.postgres.database import in_statement  # noqa: PLC0415 - as above

    column: sql.Composable = sql.Identifier(each.column)
    is_there = sql.SQL("isfinite({})" if each.column == "create_time" else "{} IS NOT NULL").format(column)
    if each.column in _TEXTS:
        column = sql.SQL('{}::text COLLATE "C"').format(column)
    values = [in_statement(sql.Literal(value)) for value in each.values]
    if each.operator == "present":
        return is_there
    if each.operator == "in":
        compared: sql.Composable = sql.SQL("{} IN ({})").format(column, sql.SQL(", ").join(values))
    elif each.operator == "starts":
        compared = sql.SQL("starts_with({}, {})").format(column, *values)
    else:
        compared = sql.SQL("{} {} {}").format(column, sql.SQL(each.operator), *values)
    return sql.SQL("({} AND {})").format(compared, is_there)


def selected(batch: "pa.RecordBatch", conditions: Sequence[Condition]) -> "pa.RecordBatch":
    """Return the rows of a batch that meet all conditions. Its `create_time` is null where it has no end."""
    import pyarrow.compute as pc  # noqa: PLC0415 - for the archive alone

    return batch.filter(reduce(pc.and_, [_mask(batch, each) for each in conditions])) if conditions else batch


def _mask(batch: "pa.RecordBatch", each: Condition) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - for the archive alone
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    column = batch.column(each.column)
    if each.operator == "present":
        return pc.is_valid(column)
    if each.operator == "in":
        return pc.is_in(column, value_set=pa.array(each.values, type=column.type))
    if each.operator == "starts":
        return pc.starts_with(column, each.values[0])
    compare = {">": pc.greater, ">=": pc.greater_equal, "<": pc.less, "<=": pc.less_equal}[each.operator]
    return compare(column, pa.scalar(each.values[0], type=column.type))
