"""Rights in Postgres that are taken away while the harvester runs: it waits, says so loudly, and goes on with them."""

import logging
from contextlib import contextmanager

import pytest
from psycopg import sql
from support.secured import MARK, MARK_LAPS, SNAPSHOT
from support.waiting import eventually

from harvest_lib.harvester import Harvest, State
from infra.local.databases import scram_verifier

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


def denials(caplog):
    return [
        record.reason
        for record in caplog.records
        if record.getMessage() == "database_access_denied" and record.levelno == logging.ERROR
    ]


@pytest.mark.parametrize(
    ("revoked", "reason"),
    [
        (without_privileges, "permission denied for table"),
        (with_another_password, "password authentication failed"),
        (without_login, "not permitted to log in"),
    ],
)
@pytest.mark.parametrize("way", [MARK, SNAPSHOT, MARK_LAPS], ids=["mark", "snapshot", "mark_laps"])
def test_it_waits_for_its_rights_and_loses_nothing(secured, caplog, way, revoked, reason):
    secured.prepare(way)
    secured.write(300)
    with Harvest(secured.config(**way)) as harvest:
        eventually(lambda: harvest.delivered_records > 0, 30, "busy")
        with revoked(secured, way):
            eventually(lambda: denials(caplog) or harvest.state is not State.RUNNING, 30, "it says so")
            assert reason in denials(caplog)[-1]
            secured.write(10)
            assert harvest.state is State.RUNNING
            assert harvest.delivered_records <= 300
        eventually(lambda: harvest.delivered_records == 310, 60, "all is delivered")
        assert harvest.state is State.RUNNING
    arrived = [record.outbox_id for record in eventually(lambda: secured.arrived(310), 10, "committed")]
    assert sorted(set(arrived)) == list(range(1, 311))
    assert way is MARK or len(arrived) == 310
