"""Statements that find no more than so many bytes of records: what a page has in memory is bounded, whatever the rows
are. They take %(bytes)s beside their own values, `harvest_lib.record.PAGE_BYTES` as a rule.

The bytes of the rows are added up in the order in which they are found, as far as %(limit)s reaches; the lengths are
known without reading a value that is kept apart from its row. A limit fitted to the last page keeps that short where
rows are large.
"""

from harvest_lib.native import NativeRows
from harvest_lib.record import TOPIC, Row

_ARRAY_BYTES = """
CASE WHEN pg_column_compression({array}) IS NULL THEN coalesce(pg_column_size({array}), 0)
     ELSE octet_length(array_to_string({array}, '', '')) END
"""

RECORD_BYTES = f"""(
8 + coalesce(octet_length({{0}}.kafka_key), 0) + coalesce(octet_length({{0}}.kafka_value), 0)
+ {_ARRAY_BYTES.format(array="{0}.kafka_header_keys")} + {_ARRAY_BYTES.format(array="{0}.kafka_header_values")}
)"""
"""The bytes of a record, with the name of its table or subquery as {0}."""

_FITS = "page.harvest_sum <= %(bytes)s OR page.harvest_number = 1"

_SIZED = f"SELECT page.*, {RECORD_BYTES.format('page')} AS harvest_bytes FROM ({{found}}) AS page"  # noqa: S608 - as below

# The window has no order of its own: it takes the rows in the order in which they are found, and returns them so.
_WITHIN = f"""
SELECT page.id, CASE WHEN {_FITS} THEN page.kafka_topic END AS kafka_topic, page.kafka_key,
  CASE WHEN {_FITS} THEN page.kafka_value END AS kafka_value, page.kafka_header_keys, page.kafka_header_values{{more}}
FROM (
  SELECT page.*, sum(page.harvest_bytes) OVER (ROWS UNBOUNDED PRECEDING) AS harvest_sum,
         row_number() OVER (ROWS UNBOUNDED PRECEDING) AS harvest_number
  FROM ({_SIZED}) AS page
) AS page
WHERE page.harvest_sum - page.harvest_bytes <= %(bytes)s OR page.harvest_number <= 2
"""  # noqa: S608 - it is above


def within(found: str, *more: str) -> str:
    """Return the statement that returns the first rows of `found`: as many as there is room for, at least
    one. If there is another, it comes too, without topic and value. `more` are columns of `found` besides a `Row`'s."""
    return _WITHIN.format(found=found, more="".join(f", page.{each}" for each in more))


def all_or_none(found: str) -> str:
    """Return the statement that returns the rows of `found` if there is room for all of them, else nothing.

    It takes a third of the time that `within` takes, since nothing but one sum is made. `found` ends with its limit.
    """
    sized = _SIZED.format(found=found)
    return f"""{found.replace("%(limit)s", "")} (
  SELECT CASE WHEN sum(page.harvest_bytes) <= %(bytes)s THEN %(limit)s::int ELSE 0 END FROM ({sized}) AS page
)
"""  # noqa: S608 - as above


def take_next(rows: list[Row] | NativeRows) -> bool:
    """Take away the row that there was no room for; return True if there was one."""
    is_cut = bool(rows) and rows[-1][TOPIC] is None
    if is_cut:
        rows.pop()
    return is_cut
