"""A pooler between the harvester and Postgres: by the session it is fine, by the transaction it is refused."""

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.outbox import harvest_config

from harvest_lib.config import HarvestConfig
from harvest_lib.config.data_source import DataSource
from harvest_lib.errors import DatabaseError
from harvest_lib.harvester import preflight
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import OutboxTable
from harvest_lib.pipeline.adaptors import writing
from harvest_lib.pipeline.message import Op, PipelineMessage
from harvest_lib.postgres.database import connect, require_session

pytestmark = pytest.mark.full


def test_postgres_itself_is_a_session(dsn):
    require_session(dsn)


def test_a_pooler_by_the_session_is_one(pooled):
    require_session(pooled("session"))


def test_a_pooler_by_the_transaction_is_refused(pooled):
    conninfo = pooled("transaction")
    with connect(conninfo), pytest.raises(DatabaseError, match="not a session") as error:
        require_session(conninfo)
    assert "pool_mode = session" in error.value.next_step


def test_nobody_stands_for_the_lock_behind_one(outbox, pooled, bootstrap_servers, group_id):
    """The lock would belong to a session that others use too, and two could lead."""
    config = harvest_config(pooled("transaction"), bootstrap_servers, group_id, leadership="postgres")
    with pytest.raises(DatabaseError, match="not a session"):
        Harvest(config).start()


@pytest.mark.parametrize("ignored", ["", "options"])
def test_settings_of_the_data_source_hold_behind_one(pooled, dsn, ignored):
    """It refuses them as a session begins, or ignores them: then another outbox would be harvested."""
    conninfo = make_conninfo(pooled("session", ignored), options="-c search_path=billing")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA billing")
        for schema in ("public", "billing"):
            OutboxTable.parse(f"{schema}.outbox").create(connection)
    with connect(conninfo) as connection:
        assert OutboxTable.parse("outbox").placed(connection).parts == ("billing", "outbox")
    parts = {"data_source": DataSource.parse(conninfo), "key": {"billing.t": ["id"]}}
    side = writing("postgres")
    writer = side.make(side.options(**parts))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE billing.t (id int PRIMARY KEY)")
        writer.write([PipelineMessage(Op.INSERT, 1, "billing.t", {"id": 1}, offset=0)])
        assert connection.execute("SELECT id FROM billing.t").fetchall() == [(1,)]
    writer.close()


def test_what_a_pooler_refuses_is_said(pooled):
    with pytest.raises(DatabaseError, match="a pooler refuses") as error:
        connect(make_conninfo(pooled("session", ""), options="-e"))
    assert "ignore_startup_parameters" in error.value.next_step


def test_harvest_check_finds_it(outbox, pooled, bootstrap_servers):
    for mode, found in (("session", False), ("transaction", True)):
        config = HarvestConfig(
            leadership="solo", base_kafka_config={"bootstrap.servers": bootstrap_servers}, data_source=pooled(mode)
        )
        assert any("not a session" in each.cause for each in preflight.inspect(config).errors) is found
