"""Servers for commands, and the table that they read."""

import psycopg
import pytest

from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.stamping import add_stamp


@pytest.fixture
def native(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        outbox = OutboxTable.parse("outbox")
        NativeTable(outbox=outbox).create(connection)
        add_stamp(connection, outbox)
        yield connection


@pytest.fixture
def servers(dsn, bootstrap_servers, group_id):
    """The variables that name the servers to a command."""
    return {"HARVEST_DSN": dsn, "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers, "HARVEST_LEADER_GROUP_ID": group_id}
