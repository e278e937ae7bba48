"""Servers for commands, and the table that they read."""

import psycopg
import pytest

from harvest_lib.outbox import NativeTable, OutboxTable


@pytest.fixture
def native(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox")).create(connection)
        yield connection


@pytest.fixture
def servers(dsn, bootstrap_servers, group_id):
    """The variables that name the servers to a command."""
    return {"HARVEST_DSN": dsn, "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers, "HARVEST_LEADER_GROUP_ID": group_id}
