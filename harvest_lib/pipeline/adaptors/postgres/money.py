"""Checks that values of the type `money` mean the same amount on two servers whose `lc_monetary` may differ.

Postgres stores an amount as a whole number of the smallest unit, and the session's `lc_monetary` sets the number of
decimal places. Sessions of pipelines use `C` (`$1,234.50`), so the stored number is transferred unchanged. The amount
is the same if the settings of both servers have two decimal places, as most have. Servers with other settings (yen:
none, dinar: three) are refused. Text in the format of another locale is refused too: `12,50` would be 1250 in `C`.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import psycopg

from harvest_lib.errors import AdaptorError

_SPELLED = re.compile(r"\s*(-|\()?\$?([0-9]+|[0-9]{1,3}(,[0-9]{3})+)(\.[0-9]{1,2})?\)?\s*")
_DIGITS = 2
_OWN = "SELECT set_config('lc_monetary', reset_val, false), reset_val FROM pg_settings WHERE name = 'lc_monetary'"
_ONE = "SELECT encode(cash_send('1'::money), 'hex')"
# Money itself, its arrays, domains of both; and composites, ranges and multiranges that have it somewhere inside.
_HELD = """
WITH RECURSIVE held AS (
  SELECT attname::text AS name, atttypid AS oid, true AS is_whole
  FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
  UNION
  SELECT held.name, part.oid, held.is_whole AND part.is_same
  FROM held JOIN pg_type AS t ON t.oid = held.oid CROSS JOIN LATERAL (
    SELECT t.typbasetype, true
    UNION ALL SELECT t.typelem, true
    UNION ALL SELECT a.atttypid, false FROM pg_attribute AS a WHERE a.attrelid = t.typrelid AND a.attnum > 0
    UNION ALL SELECT r.rngsubtype, false FROM pg_range AS r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
  ) AS part (oid, is_same) WHERE part.oid <> 0
)
SELECT name, bool_or(is_whole) FROM held WHERE oid = 'money'::regtype GROUP BY name
"""
_C = "SELECT set_config('lc_monetary', 'C', false)"


def require_two_digits(connection: psycopg.Connection[Any], what: str) -> None:
    """Raise AdaptorError unless the `lc_monetary` that is configured on the server has two decimal places. `what` is
    the name of the table with columns of money. Raises psycopg.Error."""
    (row,) = connection.execute(_OWN)
    (one,) = connection.execute(_ONE)
    connection.execute(_C)
    if int(one[0], 16) != 10**_DIGITS:
        raise AdaptorError(
            f"values of the type money in {what} have another meaning on another server",
            evidence=f"lc_monetary is {row[1]}, in which 1 is stored as {int(one[0], 16)}, elsewhere as 100",
            next_step="ALTER TABLE … ALTER COLUMN … TYPE numeric, or leave the column out (a transform, or the column "
            "list of the publication)",
        )


def is_carried(value: object) -> bool:
    """Return True if a value means the same amount on every server: a number, or text in the format of `C`."""
    if value is None or isinstance(value, list | tuple):
        return True  # an array that a source read is text
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float | Decimal):
        return bool(_SPELLED.fullmatch(str(value)))
    return isinstance(value, str) and (value.startswith("{") or _SPELLED.fullmatch(value) is not None)


def columns_of_money(connection: psycopg.Connection[Any], oid: int) -> Mapping[str, bool]:
    """Return the columns of a table that contain money, as a mapping by name. The value is True for the type itself,
    its arrays and domains, False for composites and ranges that contain it. Raises psycopg.Error."""
    return dict(connection.execute(_HELD, (oid,)).fetchall())
