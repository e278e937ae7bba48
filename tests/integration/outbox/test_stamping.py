"""Rows with a transaction id that comes from outside are delivered, or refused with a reason."""

import json
import re
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.clusters import create
from support.native import Native
from support.waiting import eventually

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import HarvestError, OutboxTableError
from harvest_lib.harvester.housekeeping.maintenance import Maintenance
from harvest_lib.harvester.housekeeping.table_warnings import warn_of_table
from harvest_lib.outbox.segments import ensure_segments
from harvest_lib.outbox.stamping import add_stamp, check_replication, unstamped

pytestmark = pytest.mark.gate


def passed_over(native, seen):
    """Return how many rows a subscription that has seen a snapshot would never read."""
    statement = "SELECT count(*) FROM outbox WHERE pg_visible_in_snapshot(transaction_id, %s::pg_snapshot)"
    return native.connection.execute(statement, (seen,)).fetchone()[0]


BACK = "INSERT INTO outbox SELECT * FROM old"


def copy_back(connection):
    with connection.cursor().copy("COPY old TO STDOUT") as out:
        rows = b"".join(bytes(each) for each in out)
    with connection.cursor().copy("COPY outbox FROM STDIN") as into:
        into.write(rows)


@pytest.mark.parametrize("bring", [lambda connection: connection.execute(BACK), copy_back])
def test_old_rows_that_are_brought_back_are_delivered(native, bring):
    native.write(25)
    native.connection.execute("CREATE TABLE old AS TABLE outbox; DELETE FROM outbox")
    seen = native.snapshot()
    bring(native.connection)
    assert passed_over(native, seen) == 25, "without the trigger"
    native.connection.execute("DELETE FROM outbox")
    assert add_stamp(native.connection, native.table) is True
    assert add_stamp(native.connection, native.table) is False
    bring(native.connection)
    assert (native.count(), passed_over(native, seen)) == (25, 0)
    native.connection.execute(
        "INSERT INTO outbox_from_20 (id, kafka_topic, kafka_key, transaction_id) VALUES (29, 't', 'k', '7')"
    )
    assert passed_over(native, seen) == 0, "straight into a segment too"


def test_new_segments_have_the_trigger(native):
    add_stamp(native.connection, native.table)
    native.write(45)
    ensure_segments(native.connection, native.table)
    seen = native.snapshot()
    native.connection.execute("INSERT INTO outbox (kafka_topic, kafka_key, transaction_id) VALUES ('t', 'k', '7')")
    assert passed_over(native, seen) == 45
    without = """
    SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass AND NOT EXISTS (
      SELECT FROM pg_trigger WHERE tgrelid = inhrelid AND tgname = 'harvest_stamp')
    """
    assert native.connection.execute(without).fetchone()[0] == 0


def test_the_command_adds_it_and_check_says_that_it_lacks(harvest, native, bootstrap_servers, group_id):
    variables = {
        "HARVEST_DSN": native.dsn,
        "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers,
        "HARVEST_LEADER_GROUP_ID": group_id,
    }

    def warned():
        problems = json.loads(harvest("check", "--json", **variables).stdout)["problems"]
        return [each for each in problems if "are never delivered" in each["cause"]]

    (said,) = warned()
    assert (said["severity"], "INSERT … SELECT" in said["evidence"]) == ("warning", True)
    assert "logical replication" in said["evidence"]
    assert "`harvest init` as the owner" in said["next_step"]
    assert "harvest_stamp" in harvest("init", **variables).stdout
    assert unstamped(native.connection, native.table) is None
    assert "harvest_stamp" not in harvest("init", **variables).stdout
    assert warned() == []
    assert "CREATE TRIGGER" in harvest("init", "--print").stdout


@pytest.mark.parametrize("state", ["DISABLE", "ENABLE REPLICA"])
@pytest.mark.parametrize("table", ["outbox", "outbox_from_20"])
def test_a_trigger_that_does_not_fire_is_named_and_mended(native, table, state):
    """In one segment too; what fires for replicated rows goes on to do so."""
    add_stamp(native.connection, native.table)
    native.connection.execute("ALTER TABLE outbox_from_10 ENABLE ALWAYS TRIGGER harvest_stamp")
    native.connection.execute(f"ALTER TABLE ONLY {table} {state} TRIGGER harvest_stamp")
    assert table in unstamped(native.connection, native.table).evidence
    assert add_stamp(native.connection, native.table) is True
    assert unstamped(native.connection, native.table) is None
    fires = "SELECT count(*) FROM pg_trigger WHERE tgname = 'harvest_stamp' AND tgenabled <> 'A'"
    assert native.connection.execute(fires).fetchone() == (0,)


@pytest.mark.parametrize("source", ["snapshot", "transaction_id", "mark"])
def test_a_start_warns_once_of_rows_that_may_be_passed_over(native, caplog, source):
    config = HarvestConfig(leadership="solo", data_source=native.dsn, source=source)
    warn_of_table(native.connection, config, native.table)
    said = [each for each in caplog.records if each.msg == "rows_unstamped"]
    assert len(said) == (source != "mark"), "it does not go by transaction ids"
    assert all("`harvest init` as the owner" in each.next_step for each in said)
    add_stamp(native.connection, native.table)
    caplog.clear()
    warn_of_table(native.connection, config, native.table)
    assert [each.msg for each in caplog.records] == []


def test_what_replication_brings_is_refused_or_delivered(native, stack, unique, caplog):
    other = Native(create(stack.postgres, unique("other")[:63]))
    slot = unique("slot")[:60]
    other.write(20)
    other.connection.execute("CREATE PUBLICATION moves FOR TABLE outbox WITH (publish_via_partition_root)")
    other.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    seen = native.snapshot()
    conninfo = make_conninfo(other.dsn).replace("'", "''")
    native.connection.execute(
        f"CREATE SUBSCRIPTION {slot} CONNECTION '{conninfo}' PUBLICATION moves "
        f"WITH (create_slot = false, slot_name = '{slot}')"
    )
    try:
        eventually(lambda: native.count() == 20, "it was copied")
        assert passed_over(native, seen) == 20
        with pytest.raises(OutboxTableError, match="never be delivered") as refused:
            check_replication(native.connection, native.table)
        maintenance = Maintenance(HarvestConfig(leadership="solo", data_source=native.dsn), native.table)
        maintenance.maintain()
        maintenance.maintain()
        assert [each.msg for each in caplog.records if each.msg == "rows_replicated"] == ["rows_replicated"]
        caplog.clear()
        native.connection.execute(f"CREATE ROLE {slot} LOGIN PASSWORD 'x'")
        native.connection.execute(f"GRANT SELECT ON outbox, outbox_subscriptions, outbox_segments TO {slot}")
        limited = make_conninfo(native.dsn, user=slot, password="x")
        with psycopg.connect(limited, autocommit=True) as theirs:
            with pytest.raises(OutboxTableError, match="never be delivered"):
                check_replication(theirs, native.table)
            assert "harvest_stamp" in unstamped(theirs, native.table).evidence
        with pytest.raises(HarvestError):  # of the segments, which it may not change
            Maintenance(HarvestConfig(leadership="solo", data_source=limited), native.table).maintain()
        assert [each.msg for each in caplog.records if each.msg == "rows_replicated"] == ["rows_replicated"]
        add_stamp(native.connection, native.table)
        native.connection.execute(refused.value.next_step.partition("as the owner, ")[2])
        check_replication(native.connection, native.table)
        other.write(5)
        eventually(lambda: native.count() == 25, "it goes on")
        assert passed_over(native, seen) == 20, "those of before: for them there is move, or restamp"
    finally:
        native.connection.execute(f"ALTER SUBSCRIPTION {slot} DISABLE")
        native.connection.execute(f"ALTER SUBSCRIPTION {slot} SET (slot_name = NONE)")
        native.connection.execute(f"DROP SUBSCRIPTION {slot}")
        eventually(
            lambda: (
                other.connection.execute(
                    "SELECT active FROM pg_replication_slots WHERE slot_name = %s", (slot,)
                ).fetchone()
                == (False,)
            )
        )
        native.connection.execute(f"DROP OWNED BY {slot}; DROP ROLE {slot}")
        other.connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        other.connection.close()


def test_rows_that_were_passed_over_are_written_once_more_as_the_page_says(native):
    page = (Path(__file__).parents[3] / "docs" / "troubleshooting.md").read_text()
    query, again = re.findall(r"```sql\n(SELECT id, transaction_id, xmin.*?|BEGIN;.*?)```", page, re.DOTALL)
    native.write(5)
    native.connection.execute("CREATE TABLE old AS TABLE outbox; DELETE FROM outbox")
    seen = native.snapshot()
    native.connection.execute(BACK)
    assert len(native.connection.execute(query.encode()).fetchall()) == 5
    add_stamp(native.connection, native.table)
    native.connection.execute(again.encode())
    assert (native.count(), passed_over(native, seen)) == (5, 0)
    assert native.connection.execute(query.encode()).fetchall() == []
