"""Rights that are taken away while the harvester runs: it waits, says so loudly, and goes on with them."""

import logging
from contextlib import contextmanager

import pytest
from psycopg import sql
from support.secured import MARK, MARK_BATCHES, SNAPSHOT
from support.waiting import eventually

from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError
from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.local_stack.passwords import scram_verifier

pytestmark = pytest.mark.full

SLOW = pytest.mark.long
LOCK = {**SNAPSHOT, "leadership": "postgres"}
END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'harvester'"


def verifier(secured, password):
    return sql.Literal(scram_verifier(secured.owner, password))


@contextmanager
def without_privileges(secured, way):
    """Sessions go on, and may not touch a table."""
    secured.owner.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM harvester")
    yield
    secured.grant(**way)


@contextmanager
def with_another_password(secured, _way):
    password = sql.SQL("ALTER ROLE harvester PASSWORD {}")
    secured.owner.execute(password.format(verifier(secured, "another one")))
    secured.owner.execute(END_SESSIONS)
    try:
        yield
    finally:
        secured.owner.execute(password.format(verifier(secured, secured.stack.security.password("harvester"))))


@contextmanager
def without_login(secured, _way):
    secured.owner.execute("ALTER ROLE harvester NOLOGIN")
    secured.owner.execute(END_SESSIONS)
    try:
        yield
    finally:
        secured.owner.execute("ALTER ROLE harvester LOGIN")


@contextmanager
def without_schema(secured, _way):
    """Postgres says then that the tables do not exist."""
    secured.owner.execute("GRANT USAGE ON SCHEMA public TO writer; REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    yield
    secured.owner.execute("GRANT USAGE ON SCHEMA public TO harvester")


def denials(caplog, event="database_access_denied"):
    return [
        record.reason for record in caplog.records if record.getMessage() == event and record.levelno == logging.ERROR
    ]


@pytest.mark.parametrize(
    ("revoked", "reason"),
    [
        (without_privileges, "permission denied for table"),
        (with_another_password, "password authentication failed"),
        (without_login, "not permitted to log in"),
    ],
)
@pytest.mark.parametrize("way", [MARK, SNAPSHOT, MARK_BATCHES, LOCK], ids=["mark", "snapshot", "mark_batches", "lock"])
def test_it_waits_for_its_rights_and_loses_nothing(secured, caplog, way, revoked, reason):
    waits(secured, caplog, way, revoked, reason)


@pytest.mark.parametrize(
    "way",
    [MARK, pytest.param(SNAPSHOT, marks=SLOW), pytest.param(MARK_BATCHES, marks=SLOW)],
    ids=["mark", "snapshot", "mark_batches"],
)
def test_so_it_does_for_the_schema(secured, caplog, way):
    """Without which Postgres says that there are no tables."""
    waits(secured, caplog, way, without_schema, "permission denied for schema public")


def waits(secured, caplog, way, revoked, reason):
    secured.prepare(way)
    secured.write(300)
    with Harvest(secured.config(**way)) as harvest:
        eventually(lambda: harvest.delivered_records > 0, "busy")
        with revoked(secured, way):
            eventually(lambda: denials(caplog) or harvest.state is not State.RUNNING, "it says so")
            assert reason in denials(caplog)[-1]
            secured.write(10)
            assert harvest.state is State.RUNNING
            assert harvest.delivered_records <= 300
        eventually(lambda: harvest.delivered_records == 310, "all is delivered")
        assert harvest.state is State.RUNNING
    arrived = [record.outbox_id for record in eventually(lambda: secured.arrived(310), "committed")]
    assert sorted(set(arrived)) == list(range(1, 311))
    assert way is MARK or len(arrived) == 310


@pytest.mark.parametrize("way", [MARK, pytest.param(SNAPSHOT, marks=SLOW)], ids=["mark", "snapshot"])
def test_a_table_that_is_gone_is_not_waited_for(secured, way):
    secured.prepare(way)
    with pytest.raises(OutboxTableError, match="not there"), Harvest(secured.config(**way)) as harvest:
        eventually(lambda: harvest.is_leader, "it leads")
        secured.owner.execute("DROP TABLE outbox CASCADE")
        harvest.await_stopped(60)


def test_a_schema_that_may_not_be_used_is_said_at_the_start(secured):
    secured.prepare(SNAPSHOT)
    secured.owner.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    with pytest.raises(DatabaseAccessDenied, match='GRANT USAGE ON SCHEMA public TO "harvester"'):
        Harvest(secured.config(**SNAPSHOT)).start()


@pytest.mark.parametrize(
    "lost", [pytest.param({"READ"}, marks=SLOW), {"READ", "WRITE", "DESCRIBE", "CREATE"}], ids=["read", "all"]
)
def test_it_waits_for_its_checkpoint_topic(secured, caplog, lost):
    """It is read again whenever the connection to Postgres was lost."""
    secured.prepare(SNAPSHOT)
    with Harvest(secured.config(**SNAPSHOT)) as harvest:
        secured.write(20)
        eventually(lambda: harvest.delivered_records == 20, "delivered")
        with secured.without(lambda acl: acl.name.endswith(".checkpoint") and acl.operation.name in lost):
            secured.owner.execute(END_SESSIONS)
            secured.write(10)
            eventually(
                lambda: denials(caplog, "kafka_access_denied") or harvest.state is not State.RUNNING, "it says so"
            )
            assert harvest.state is State.RUNNING
            assert "authorization failed" in denials(caplog, "kafka_access_denied")[-1].lower()
            assert harvest.delivered_records == 20
        eventually(lambda: harvest.delivered_records == 30, "all is delivered")
    arrived = [record.outbox_id for record in eventually(lambda: secured.arrived(30), "committed")]
    assert sorted(arrived) == list(range(1, 31))


def test_who_waits_to_lead_waits_this_out_too(secured, monkeypatch):
    for name in ("_FIRST_CHECK_SECONDS", "_CHECK_SECONDS"):
        monkeypatch.setattr(f"harvest_lib.harvester.assembly.engine.{name}", 0.1)
    way = {**MARK_BATCHES, "leadership": "postgres"}
    secured.prepare(way)
    secured.write(5)
    with Harvest(secured.config(**way)) as leader:
        eventually(lambda: leader.delivered_records == 5, "it leads")
        with Harvest(secured.config(**way)) as waiting:
            asked = []
            preconditions = waiting._engine._preconditions
            monkeypatch.setattr(preconditions, "refuse_rivals", counted(preconditions.refuse_rivals, asked))
            eventually(lambda: None in asked, "it asks")
            with without_schema(secured, way):
                eventually(lambda: any(asked), "it is reported that there is no such table")
                reported = len(asked)
                eventually(lambda: len(asked) > reported + 1 or waiting.state is not State.RUNNING, "it asks again")
                assert waiting.state is State.RUNNING
            eventually(lambda: asked[-1] is None, "it asks and is answered")


def counted(ask, results):
    """Return what asks, and keeps what each time was raised, or None."""

    def asks(*arguments):
        try:
            ask(*arguments)
        except Exception as error:
            results.append(error)
            raise
        results.append(None)

    return asks
