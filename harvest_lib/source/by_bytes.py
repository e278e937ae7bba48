"""SQL statements whose result is limited in bytes, so that the memory of a page is bounded for rows of any size. The
limit is the parameter %(bytes)s, usually `harvest_lib.record.PAGE_BYTES`.

A statement adds up the sizes of the rows in the order in which it finds the rows, up to %(limit)s rows. Postgres knows
the length of a TOASTed value without reading the value. If rows are large, a caller can lower %(limit)s to about the
number of rows in the last page, so that the statement adds up few sizes.
"""

from harvest_lib.native import NativeRows
from harvest_lib.outbox.record_pages import SIZED
from harvest_lib.record import TOPIC, Row

# The window has no ORDER BY: it keeps the order in which the rows are found.
SUMMED = """
SELECT page.*, sum({size}) OVER (ROWS UNBOUNDED PRECEDING) AS harvest_sum,
       row_number() OVER (ROWS UNBOUNDED PRECEDING) AS harvest_number
FROM ({found}) AS page
"""
"""Statement for the rows of the statement {found}, each with the sum of the sizes up to it, and its number. {size} is
the size of a row `page`."""

FITS = "page.harvest_sum <= %(bytes)s OR page.harvest_number = 1"
"""SQL condition for the rows of `SUMMED` that fit into the bytes, at least a single row."""

_WITHIN = f"""
SELECT page.id, CASE WHEN {FITS} THEN page.kafka_topic END AS kafka_topic, page.kafka_key,
  CASE WHEN {FITS} THEN page.kafka_value END AS kafka_value, page.kafka_header_keys, page.kafka_header_values{{more}}
FROM ({SUMMED.format(size="page.harvest_bytes", found=SIZED)}) AS page
WHERE page.harvest_sum - page.harvest_bytes <= %(bytes)s OR page.harvest_number <= 2
"""  # noqa: S608 - constants of this module


def within(found: str, *more: str) -> str:
    """Return a statement for the first rows of the statement `found` that fit into %(bytes)s, at least a single row. If
    more rows follow, the statement also returns the next row, with NULL as topic and value: see `take_next`. `more` are
    further columns of `found` to return, after the columns of a `Row`."""
    return _WITHIN.format(found=found, more="".join(f", page.{each}" for each in more))


def all_or_none(found: str) -> str:
    """Return a statement for the rows of the statement `found`: all rows if they fit into %(bytes)s, else no row.

    The statement takes a third of the time of a statement from `within`, since it computes only a sum. `found` must end
    with `LIMIT %(limit)s`.
    """
    sized = SIZED.format(found=found)
    return f"""{found.replace("%(limit)s", "")} (
  SELECT CASE WHEN sum(page.harvest_bytes) <= %(bytes)s THEN %(limit)s::int ELSE 0 END FROM ({sized}) AS page
)
"""  # noqa: S608 - constants of this package


def take_next(rows: list[Row] | NativeRows) -> bool:
    """Remove the last row if its topic is NULL, which shows that the row did not fit into the bytes: see `within`.
    Return True if the row was removed."""
    is_cut = bool(rows) and rows[-1][TOPIC] is None
    if is_cut:
        rows.pop()
    return is_cut
