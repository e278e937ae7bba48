"""Whether rows stay in an outbox after their delivery, so that a reader with a position of its own can follow it."""

from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.translation import translated

_MARKS = "SELECT EXISTS (SELECT FROM {subscriptions} WHERE source = 'mark')"


def keeps_rows(connection: psycopg.Connection[Any], table: OutboxTable) -> bool:
    """Return True if rows stay in the outbox after their delivery: it is the native table, and no subscription marks.

    Raises OutboxTableError or DatabaseError.
    """
    if table.check_columns(connection) != "native":
        return False
    beside = table.placed(connection).subscriptions
    if not beside.exists(connection):
        return True
    with translated():
        row = connection.execute(sql.SQL(_MARKS).format(subscriptions=beside.identifier)).fetchone()
    return row is None or not row[0]
