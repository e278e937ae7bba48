"""Rehearsal of marks: a table that takes the real ones is not refused."""

import psycopg
import pytest
from support.outbox import Outbox

from harvest_lib.outbox.marks import rehearse_marks
from harvest_lib.postgres.database import connect

pytestmark = pytest.mark.gate

GUARD = """
CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN IF OLD.leader_id IS NULL THEN RAISE EXCEPTION 'it is not marked'; END IF; RETURN OLD; END$$;
CREATE TRIGGER guard BEFORE DELETE ON {} FOR EACH ROW EXECUTE FUNCTION guard()
"""
TAKE = {
    "what changes nothing is passed over": "CREATE TRIGGER same BEFORE UPDATE ON {} FOR EACH ROW "
    "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "what is not marked is not purged": GUARD,
}


@pytest.mark.parametrize("statement", TAKE.values(), ids=TAKE)
def test_triggers_that_let_marks_and_purges_pass_are_no_trouble(dsn, statement):
    outbox = Outbox(dsn, "t")
    outbox.fill(1)
    name = outbox.name.identifier.as_string(None)
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(statement.format(name))
    with connect(dsn) as connection:
        rehearse_marks(connection, outbox.name)
    outbox.close()
