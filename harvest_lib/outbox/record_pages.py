"""Pages of a cursor over records: the size of a record in SQL, and reads that are limited in bytes.

A cursor returns the number of rows that it is asked for, whatever their size. So each row of the statement `sized` has
the sizes of the rows that follow, and a page has as many rows as fit. Postgres knows the length of a TOASTed value
without reading the value.
"""

from collections.abc import Iterator
from typing import Any

import psycopg

from harvest_lib.record import PAGE_BYTES

ARRAY_BYTES = """
CASE WHEN pg_column_compression({array}) IS NULL THEN coalesce(pg_column_size({array}), 0)
     ELSE octet_length(array_to_string({array}, '', '')) END
"""
"""SQL expression for the size of an array of texts in bytes."""

RECORD_BYTES = f"""(
8 + coalesce(octet_length({{0}}.kafka_key), 0) + coalesce(octet_length({{0}}.kafka_value), 0)
+ {ARRAY_BYTES.format(array="{0}.kafka_header_keys")} + {ARRAY_BYTES.format(array="{0}.kafka_header_values")}
)"""
"""SQL expression for the size of a record in bytes. {0} is the name of the record's table or subquery."""

SIZED = f"SELECT page.*, {RECORD_BYTES.format('page')} AS harvest_bytes FROM ({{found}}) AS page"  # noqa: S608 - constants of this module
"""Statement for the rows of the statement {found}, with their sizes."""

_MANY, _FEW = 500, 25
_NEXT = "coalesce(sum(page.harvest_bytes) OVER (ORDER BY {order} ROWS BETWEEN 1 FOLLOWING AND {count} FOLLOWING), 0)"


def sized(found: str, order: str) -> str:
    """Return a statement for the rows of the statement `found` in an order, with the columns that `pages` needs. In
    `order`, the rows have the name `page`."""
    sums = ", ".join(_NEXT.format(order=order, count=count) for count in (_MANY, _FEW))
    return f"SELECT page.*, {sums} FROM ({SIZED.format(found=found)}) AS page ORDER BY {order}"  # noqa: S608 - as above


def pages(cursor: psycopg.ServerCursor[Any]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a statement from `sized` in pages of up to `PAGE_BYTES`, or a single larger record. The columns
    that `sized` adds are removed."""
    count = 1
    while rows := cursor.fetchmany(count):
        *_, of_many, of_few = rows[-1]
        count = _MANY if of_many <= PAGE_BYTES else _FEW if of_few <= PAGE_BYTES else 1
        yield [row[:-3] for row in rows]
