"""Rows with a transaction id that comes from outside are delivered, or refused with a reason."""

import pytest
from psycopg.conninfo import make_conninfo
from support.clusters import create
from support.native import Native
from support.waiting import eventually

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import OutboxTableError
from harvest_lib.harvester.maintenance import Maintenance
from harvest_lib.outbox import ensure_segments
from harvest_lib.outbox.stamping import add_stamp, check_replication, is_stamped

pytestmark = pytest.mark.gate


@pytest.fixture
def native(dsn):
    made = Native(dsn)
    yield made
    made.connection.close()


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
    assert "by the column's default alone" in harvest("check", **variables).stdout
    assert "harvest_stamp" in harvest("init", **variables).stdout
    assert is_stamped(native.connection, native.table)
    assert "harvest_stamp" not in harvest("init", **variables).stdout
    assert "by the column's default alone" not in harvest("check", **variables).stdout
    assert "CREATE TRIGGER" in harvest("init", "--print").stdout


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
        maintenance.look()
        maintenance.look()
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
        other.connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        other.connection.close()
