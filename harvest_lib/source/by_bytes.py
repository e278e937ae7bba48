"""Statements with a limit in bytes, which bounds the memory of a page for rows of any size. They take %(bytes)s beside
their own values, usually `harvest_lib.record.PAGE_BYTES`.

The bytes of the rows are added up in the order in which they are found, as far as %(limit)s reaches. The length of a
TOASTed value is known without reading the value. A limit fitted to the last page keeps the sum short where rows are
large.
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

_SIZED = f"SELECT page.*, {RECORD_BYTES.format('page')} AS harvest_bytes FROM ({{found}}) AS page"  # noqa: S608 - constants of this module

# The window has no ORDER BY: it keeps the order in which the rows are found.
_WITHIN = f"""
SELECT page.id, CASE WHEN {_FITS} THEN page.kafka_topic END AS kafka_topic, page.kafka_key,
  CASE WHEN {_FITS} THEN page.kafka_value END AS kafka_value, page.kafka_header_keys, page.kafka_header_values{{more}}
FROM (
  SELECT page.*, sum(page.harvest_bytes) OVER (ROWS UNBOUNDED PRECEDING) AS harvest_sum,
         row_number() OVER (ROWS UNBOUNDED PRECEDING) AS harvest_number
  FROM ({_SIZED}) AS page
) AS page
WHERE page.harvest_sum - page.harvest_bytes <= %(bytes)s OR page.harvest_number <= 2
"""  # noqa: S608 - constants of this module


def within(found: str, *more: str) -> str:
    """Return the statement for the first rows of `found` that fit into the bytes, at least a single row. A following
    row comes too, without topic and value. `more` are columns of `found` besides a `Row`'s."""
    return _WITHIN.format(found=found, more="".join(f", page.{each}" for each in more))


def all_or_none(found: str) -> str:
    """Return the statement for the rows of `found` if all of them fit into the bytes, and for none otherwise.

    It takes a third of the time of `within`, since it computes only a sum. `found` ends with its limit.
    """
    sized = _SIZED.format(found=found)
    return f"""{found.replace("%(limit)s", "")} (
  SELECT CASE WHEN sum(page.harvest_bytes) <= %(bytes)s THEN %(limit)s::int ELSE 0 END FROM ({sized}) AS page
)
"""  # noqa: S608 - constants of this package


def take_next(rows: list[Row] | NativeRows) -> bool:
    """Remove the last row if it did not fit into the bytes; return True if it was removed."""
    is_cut = bool(rows) and rows[-1][TOPIC] is None
    if is_cut:
        rows.pop()
    return is_cut
