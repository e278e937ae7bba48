"""Servers for commands, and the table that they read."""

import psycopg
import pytest
from support.checked import native_table

from harvest_lib.config import HarvestConfig
from harvest_lib.harvester import preflight


@pytest.fixture
def native(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        native_table(connection)
        yield connection


@pytest.fixture
def servers(dsn, bootstrap_servers, group_id):
    """The variables that name the servers to a command."""
    return {"HARVEST_DSN": dsn, "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers, "HARVEST_LEADER_GROUP_ID": group_id}


@pytest.fixture
def configured(dsn, bootstrap_servers, group_id):
    """Return the configuration of a harvester, with settings of its own."""

    def config(**settings):
        kafka = {"bootstrap.servers": bootstrap_servers}
        known = {"base_kafka_config": kafka, "data_source": dsn, "leader_group_id": group_id}
        return HarvestConfig(**{**known, "delivery": "barrier", "leadership": "neli", **settings})

    return config


@pytest.fixture
def inspected(configured):
    return lambda *topics, **settings: preflight.inspect(configured(**settings), topics)
