"""The audit by Spark and row-level security: a row that a policy hides would be missing from what was committed."""

from contextlib import contextmanager

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.audited import RECORDS

from harvest_lib.errors import DatabaseAccessDenied, DatabaseError
from harvest_lib.spark.audit import Business

pytestmark = [pytest.mark.full, pytest.mark.spark]

HIDE_ALL = "ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
HIDE_SOME = "CREATE POLICY few ON {table} FOR SELECT TO PUBLIC USING (ctid = '(0,1)')"
SHOW_ALL = "CREATE POLICY everything ON {table} FOR SELECT TO PUBLIC USING (true)"


@pytest.fixture
def reader(unique):
    """Return what makes a role that may read everything in an outbox's database, and yields its DSN."""

    @contextmanager
    def made(outbox):
        name = unique("reader")[:63].replace("-", "_")
        execute = outbox.connection.execute
        execute(f"CREATE ROLE {name} LOGIN PASSWORD 'canary'")
        try:
            execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}")
            execute(f"GRANT CREATE ON DATABASE {outbox.connection.info.dbname} TO {name}")
            yield make_conninfo(outbox.dsn, user=name, password="canary")
        finally:
            execute(f"DROP OWNED BY {name} CASCADE")
            execute(f"DROP ROLE {name}")

    return made


def run(outbox, table, *statements):
    for statement in statements:
        outbox.connection.execute(statement.format(table=table))


def promoted(purged):
    purged.promote(RECORDS)
    purged.harvest()


@pytest.mark.parametrize("table", ["outbox", "outbox_subscriptions", "outbox_parked_ids"])
@pytest.mark.parametrize("policies", [(HIDE_ALL,), (HIDE_ALL, HIDE_SOME)], ids=["all", "some"])
def test_rows_of_an_outbox_that_are_hidden_refuse_the_audit(native, reader, table, policies):
    native.deliver()
    with reader(native.outbox) as dsn:
        run(native.outbox, table, *policies)
        with pytest.raises(DatabaseAccessDenied, match="row-level security hides rows") as caught:
            native.audit(dsn=dsn)
        assert native.findings("summary") == []
    assert f" {table} " in caught.value.evidence
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("table", ["flights", "flights_batches", "outbox", "outbox_parked"])
def test_rows_beside_a_purged_outbox_that_are_hidden_refuse_the_audit(purged, reader, table):
    promoted(purged)
    with reader(purged.outbox) as dsn:
        run(purged.outbox, table, HIDE_ALL, HIDE_SOME)
        with pytest.raises(DatabaseAccessDenied, match="row-level security hides rows") as caught:
            purged.audit(dsn=dsn)
    assert f" {table} " in caught.value.evidence


def test_policies_that_show_all_rows_let_the_audit_through(native, reader):
    native.deliver()
    with reader(native.outbox) as dsn:
        for table in ("outbox", "outbox_subscriptions", "outbox_parked_ids"):
            run(native.outbox, table, HIDE_ALL, SHOW_ALL)
        found = native.audit(dsn=dsn)
    assert (found.committed, found.ok) == (RECORDS, True)


def test_rows_that_are_hidden_behind_a_view_fail_what_spark_reads(purged, reader):
    promoted(purged)
    with reader(purged.outbox) as dsn:
        run(
            purged.outbox,
            "flights",
            "CREATE VIEW trips AS SELECT * FROM flights",
            f"ALTER VIEW trips OWNER TO {conninfo_to_dict(dsn)['user']}",
            "CREATE VIEW trips_batches AS SELECT * FROM flights_batches; GRANT SELECT ON trips_batches TO PUBLIC",
            HIDE_ALL,
            HIDE_SOME,
        )
        with pytest.raises(DatabaseError, match="row-level security"):
            purged.audit(dsn=dsn, business=Business(table="trips"))
