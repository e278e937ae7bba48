"""Fixtures shared by the tests of public formats and of old artefacts."""

import json

import psycopg
import pytest


@pytest.fixture
def connection(dsn):
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


@pytest.fixture
def configured(dsn, bootstrap_servers, group_id, tmp_path):
    """Write a configuration to a file, and return its path."""

    def write(**settings):
        file = tmp_path / "reaper.yaml"
        kafka = {"bootstrap.servers": bootstrap_servers}
        file.write_text(
            json.dumps({"leaderGroupID": group_id, "dataSource": dsn, "baseKafkaConfig": kafka, **settings})
        )
        return file

    return write
