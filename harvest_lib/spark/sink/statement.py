"""The promotion as a single statement: the chosen rows, in the declared order, into the business table and the outbox.

    chosen     the rows of the attempts in order, with defaults for columns of the record that the frame lacks
    written    inserts `chosen` into the business table, if there is one
    recorded   inserts `chosen` into the outbox in the same order, so that ids ascend in that order

Without a business table the statement is a plain INSERT, and the server's row count is the number of records. Counting
the rows that an INSERT in a WITH query returns is an eighth of the work.

The statement has identifiers and literals, but no bound values: a percent sign in a column's name needs no escape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from psycopg import sql

from harvest_lib.outbox.checks import TOPIC_IS_LEGAL
from harvest_lib.spark.sink.queries import as_sql
from harvest_lib.spark.sink.records import KEY_SEPARATOR, BatchId, Fixed, HeaderSource

if TYPE_CHECKING:
    from harvest_lib.spark.sink.plan import WritePlan

_COMMA = sql.SQL(", ")

_RECORDED = """
    INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
    SELECT {create_time}, {topic}, {key}, {value}, {header_keys}, {header_values}
    FROM chosen AS r CROSS JOIN LATERAL (SELECT {value_columns}) AS v
"""

_ALONE = "WITH chosen AS ({chosen}) {recorded}"

_BESIDE_BUSINESS = """
WITH chosen AS ({chosen}),
written AS (
    INSERT INTO {business} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} FROM chosen AS r RETURNING 1
),
recorded AS ({recorded} RETURNING 1)
SELECT (SELECT count(*) FROM recorded), (SELECT count(*) FROM written)
"""

_CHOSEN = """
    SELECT {filled} o.* FROM (
        SELECT {columns}
        FROM {staging} AS s
        WHERE s.run = {run} AND s.attempt = ({attempts}::text[]::xid8[])[s.partition + 1]
        ORDER BY {order}
    ) AS o
"""

_FAULTS = """
WITH chosen AS ({chosen})
SELECT count(*) FILTER (WHERE {key} IS NULL), max(char_length({key})), max(char_length(({value})::text))
FROM chosen AS r CROSS JOIN LATERAL (SELECT {value_columns}) AS v
"""


_ILLEGAL_TOPICS = """
SELECT kafka_topic, count(*) FROM (
    SELECT {topic} AS kafka_topic FROM {staging} AS r
    WHERE r.run = {run} AND r.attempt = ({attempts}::text[]::xid8[])[r.partition + 1]
) AS named
WHERE ({is_legal}) IS NOT TRUE
GROUP BY 1 ORDER BY 1 LIMIT 5
"""


def promotion(plan: "WritePlan", *, batch: str, run: str, attempts: Sequence["Attempt"]) -> sql.Composed:
    """Return the statement that promotes the attempts. With a business table the statement returns a single row: the
    number of records and the number of business rows."""
    chosen = _chosen(plan, run=run, attempts=attempts)
    recorded = sql.SQL(_RECORDED).format(
        outbox=plan.tables.outbox,
        create_time=_create_time(plan),
        topic=_topic(plan),
        key=_key(plan),
        value=_value(plan),
        value_columns=_value_columns(plan),
        header_keys=_headers(plan, [sql.Literal(name) for name in plan.records.headers], place=1),
        header_values=_headers(plan, [_header(source, batch) for source in plan.records.headers.values()], place=0),
    )
    if plan.tables.business is None:
        return sql.SQL(_ALONE).format(chosen=chosen, recorded=recorded)
    given = {name: sql.Identifier("r", name) for name in plan.business if name in plan.names}
    given |= {each.name: sql.Identifier("r", each.name) for each in plan.filled_columns}
    columns: list[sql.Composable] = [sql.Identifier(name) for name in given]
    values: list[sql.Composable] = list(given.values())
    if plan.batch_column is not None:
        columns.append(sql.Identifier(plan.batch_column))
        values.append(sql.Literal(batch))
    return sql.SQL(_BESIDE_BUSINESS).format(
        chosen=chosen,
        recorded=recorded,
        business=plan.tables.business,
        columns=_COMMA.join(columns),
        values=_COMMA.join(values),
    )


def faults(plan: "WritePlan", *, run: str, attempts: Sequence["Attempt"]) -> sql.Composed:
    """Return the statement that counts rows without a key and measures the longest key and value, in characters."""
    return sql.SQL(_FAULTS).format(
        chosen=_chosen(plan, run=run, attempts=attempts),
        key=_key(plan),
        value=_value(plan),
        value_columns=_value_columns(plan),
    )


def illegal_topics(plan: "WritePlan", *, run: str, attempts: Sequence["Attempt"]) -> sql.Composed:
    """Return the statement with the names that cannot be topics, each with its number of rows; at most five."""
    topic = next(each.staged for each in plan.columns if each.name == plan.records.topic_column)
    return sql.SQL(_ILLEGAL_TOPICS).format(
        topic=_text_of(topic),
        is_legal=sql.SQL(TOPIC_IS_LEGAL),
        staging=plan.tables.staging,
        run=sql.Literal(run),
        attempts=sql.Literal(_by_partition(attempts)),
    )


def _chosen(plan: "WritePlan", *, run: str, attempts: Sequence["Attempt"]) -> sql.Composed:
    columns: list[sql.Composable] = []
    for each in plan.columns:
        to = f"::{wanted}" if (wanted := plan.type_of(each.name)) != each.type else ""
        columns.append(
            sql.SQL("s.{}{} AS {}").format(sql.Identifier(each.staged), as_sql(to), sql.Identifier(each.name))
        )
    # A bare name in ORDER BY is a column of the result, so rows are ordered by the values that are written.
    order = [sql.Identifier(name) for name in plan.records.order_by]
    return sql.SQL(_CHOSEN).format(
        filled=sql.SQL("").join(
            sql.SQL("{} AS {}, ").format(as_sql(each.filled_by or "NULL"), sql.Identifier(each.name))
            for each in plan.filled_columns
        ),
        columns=_COMMA.join(columns),
        staging=plan.tables.staging,
        run=sql.Literal(run),
        attempts=sql.Literal(_by_partition(attempts)),
        order=_COMMA.join([*order, sql.SQL("s.partition"), sql.SQL("s.row")]),
    )


def _by_partition(attempts: Sequence["Attempt"]) -> list[str]:
    """Return a list of attempt ids with the partition as index. A partition without rows has an id that matches no row.

    The statement looks ids up by index and does not join, because the planner does not know how many rows are staged.
    """
    found = {each.partition: each.attempt for each in attempts}
    return [found.get(partition, "0") for partition in range(max(found, default=-1) + 1)]


def _topic(plan: "WritePlan") -> sql.Composable:
    column = plan.records.topic_column
    return sql.Literal(plan.records.topic) if column is None else _text_of(column)


def _create_time(plan: "WritePlan") -> sql.Composable:
    column = plan.records.create_time_column
    if column is None:
        return sql.SQL("clock_timestamp()")
    return sql.SQL("coalesce({}::timestamptz, clock_timestamp())").format(sql.Identifier("r", column))


def _key(plan: "WritePlan") -> sql.Composable:
    if isinstance(plan.records.key, str) and plan.type_of(plan.records.key) == "bytea":
        return sql.SQL("convert_from({}, 'UTF8')").format(sql.Identifier("r", plan.records.key))
    parts = [_text_of(name) for name in plan.records.key_columns]
    return sql.SQL(f" || '{KEY_SEPARATOR}' || ").join(parts)


def _value(plan: "WritePlan") -> sql.Composable:
    as_bytes = plan.outbox["kafka_value"].type == "bytea"
    value: sql.Composable
    if isinstance(plan.records.value, str):
        if plan.type_of(plan.records.value) == "bytea":
            column = sql.Identifier("r", plan.records.value)
            return column if as_bytes else sql.SQL("convert_from({}, 'UTF8')").format(column)
        value = _text_of(plan.records.value)
    else:
        value = sql.SQL("row_to_json(v.*)::text")
    return sql.SQL("convert_to({}, 'UTF8')").format(value) if as_bytes else value


def _value_columns(plan: "WritePlan") -> sql.Composable:
    if isinstance(plan.records.value, str):
        return sql.SQL("")
    nested = {each.name for each in plan.columns if each.content == "json"}
    return _COMMA.join(
        sql.SQL("{0}::json AS {1}" if name in nested else "{0}").format(sql.Identifier("r", name), sql.Identifier(name))
        for name in plan.records.value_columns(plan.names)
    )


def _header(source: HeaderSource, batch: str) -> sql.Composable:
    match source:
        case Fixed(text):
            return sql.Literal(text)
        case BatchId():
            return sql.Literal(batch)
        case str():
            return _text_of(source)


def _text_of(name: str) -> sql.Composable:
    return sql.SQL("{}::text").format(sql.Identifier("r", name))


def _headers(plan: "WritePlan", declared: Sequence[sql.Composable], *, place: int) -> sql.Composable:
    """Return the array of header names (`place` 1) or texts (0): declared headers, then headers of the column."""
    texts = sql.SQL("ARRAY[{}]::text[]").format(_COMMA.join(declared))
    column = plan.records.headers_column
    if column is None:
        return texts
    each = "SELECT u.e FROM unnest({}) WITH ORDINALITY AS u (e, n) WHERE u.n % 2 = {} ORDER BY u.n"
    return sql.SQL(f"{{}} || ARRAY({each})").format(texts, sql.Identifier("r", column), sql.Literal(place))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The rows of one attempt of one partition in the staging table. `whole` is false if rows are missing."""

    partition: int
    attempt: str
    rows: int
    hash_sum: Decimal
    whole: bool = True
