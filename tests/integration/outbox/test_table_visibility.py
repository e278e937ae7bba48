"""Tables that Postgres calls missing are asked for again before anybody ends because of them."""

import psycopg
import pytest

from harvest_lib.errors import DatabaseUnavailable, OutboxTableError
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.table_visibility import translate_table_errors
from harvest_lib.postgres.translation import translated

pytestmark = pytest.mark.gate

TABLE = OutboxTable.parse("outbox")


def read(connection, dsn):
    with translate_table_errors(lambda: dsn, [TABLE], TABLE.check_columns), translated():
        connection.execute("SELECT FROM outbox")


@pytest.fixture
def connection(dsn):
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


def test_a_table_that_was_dropped_is_missing(connection, dsn):
    with pytest.raises(OutboxTableError, match=r"does not exist|missing"):
        read(connection, dsn)


def test_a_privilege_that_is_granted_while_it_asks_is_waited_for(connection, dsn, monkeypatch):
    """The table was hidden when it was asked for, and is no longer when the privileges are looked up."""
    grant = "CREATE TABLE outbox (id bigint)"
    monkeypatch.setattr(OutboxTable, "refuse_hidden", lambda _table, _connection: connection.execute(grant))
    with pytest.raises(DatabaseUnavailable, match="missing for a moment"):
        read(connection, dsn)
