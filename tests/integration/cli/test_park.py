"""`harvest park` and `harvest pump`, as a person runs them."""

import json
import signal
import uuid
from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from support.parking import Parking
from support.terminal import Screen
from support.waiting import eventually

from harvest_lib import OutboxRecord, append
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.parking import ParkedIdTable, ParkedRecords, ParkedSelection

pytestmark = pytest.mark.gate

TOPICS = ["--topic", "orders"], ["--topic", "none,orders"], ["--topic", "none", "-t", "neither"]


@pytest.fixture
def parking(dsn):
    """Two parked records, one of a key that has another held behind it; no Kafka is needed to look at them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        parked = ParkedRecords(OutboxTable.parse("outbox"))
        parked.outbox.create(connection)
        parked.create(connection)
        made = Parking(connection, parked)
        keys = ("o-1", "o-2\x1b[2J\n", "o-1", "o-3")
        headers = [("type", "placed"), ("trace", None)]
        append(connection, [OutboxRecord(topic="orders", key=key, value="canary", headers=headers) for key in keys])
        made.move(1, reason="no topic 'orders'")
        made.move(2, reason="[red]too large[/]")
        made.move(3, held=1)
        yield made


@pytest.fixture
def park(harvest, dsn):
    return lambda *arguments, **variables: harvest("park", *arguments, HARVEST_DSN=dsn, **variables)


def test_list_shows_what_is_parked_without_payloads(park, parking):
    shown = park("list").stdout
    assert "2 parked, 1 held" in shown
    assert "[red]too large[/]" in shown
    assert r"o-2\x1b[2J\n" in shown
    assert "canary" not in shown
    listed = json.loads(park("list", "--key", "o-1", "--json").stdout)
    assert [(each["id"], each["held"]) for each in listed] == [(1, False), (3, True)]
    assert "the first 1 shown" in park("list", "-n", "1").stdout
    assert park("list", "--topic", "none").stdout == "no matching record is parked\n"
    assert [len(json.loads(park("list", *topics, "--json").stdout)) for topics in TOPICS] == [3, 3, 0]


def test_show_has_the_payload_only_when_asked(park, parking):
    for arguments in (["show", "1"], ["show", "1", "--json"]):
        shown = park(*arguments).stdout
        assert "placed" in shown
        assert "canary" not in shown
        assert "canary" in park(*arguments, "--value").stdout
    assert json.loads(park("show", "3", "--json").stdout)["row"]["kafka_header_values"] == ["placed", None]
    missing = park("show", "99")
    assert missing.returncode == 1
    assert "harvest park list" in missing.stderr


@pytest.fixture
def in_batches(dsn):
    """The same in a native table, parked by the subscription `default`; another one has parked record 4."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox"), value_type="text").create(connection)
        keys = ("o-1", "o-2", "o-1", "o-1", "o-3")
        append(connection, [OutboxRecord(topic="orders", key=key, value="canary") for key in keys])
        entries = [("default", False, 1), ("default", False, 2), ("default", True, 3)]
        connection.cursor().executemany(
            "INSERT INTO outbox_parked_ids"
            " (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id)"
            " SELECT %s, 0, id, 'orders', kafka_key, 'because', %s, transaction_id FROM outbox WHERE id = %s",
            [*entries, ("other", False, 4)],
        )
        yield connection


def entries(connection):
    rows = connection.execute("SELECT subscription, id, retry FROM outbox_parked_ids ORDER BY 1, 2").fetchall()
    return {(subscription[0], record_id): retry for subscription, record_id, retry in rows}


def test_list_and_show_in_batches(park, in_batches):
    shown = park("list").stdout
    assert "2 parked, 1 held" in shown
    listed = json.loads(park("list", "--subscription", "other", "--json").stdout)
    assert [(each["id"], each["held"], each["reason"]) for each in listed] == [(4, False, "because")]
    assert "canary" in park("show", "3", "--value").stdout
    assert "canary" not in park("show", "3").stdout
    assert park("show", "4").returncode == 1
    in_batches.execute("DELETE FROM outbox")
    assert park("show", "3").returncode == 0


@pytest.mark.quick
def test_retry_and_drop_in_batches(park, in_batches):
    assert park("retry", "3").stdout.splitlines() == [
        "will be sent again: 0 parked records, and 0 held behind them",
        "1 waits behind an earlier record of its key that is still parked: 1",
    ]
    assert park("retry", "1").stdout == "will be sent again: 1 parked record, and 1 held behind them\n"
    assert entries(in_batches) == {("d", 1): True, ("d", 2): False, ("d", 3): True, ("o", 4): False}
    assert "to be retried: because" in park("list", "--json").stdout
    assert park("retry", "3", "9").returncode == 1
    assert park("drop", "--all", "--yes").stdout == "dropped: 2 parked records; will be sent: 1 held behind them\n"
    assert entries(in_batches) == {("d", 3): True, ("o", 4): False}
    assert park("drop", "--all", "--subscription", "other", "--yes").stdout.startswith("dropped: 1 parked record;")
    assert entries(in_batches) == {("d", 3): True}
    assert in_batches.execute("SELECT count(*) FROM outbox").fetchone()[0] == 5


def test_drop_in_batches_lets_go_what_was_held(park, in_batches):
    done = json.loads(park("drop", "1", "--yes", "--json").stdout)
    assert done == {"dropped": 1, "released": 1}
    assert entries(in_batches) == {("d", 2): False, ("d", 3): True, ("o", 4): False}


def test_status_counts_what_is_parked_in_batches(harvest, in_batches, dsn):
    status = json.loads(harvest("status", "--json", HARVEST_DSN=dsn).stdout)
    assert (status["parked_records"], status["held_records"]) == (2, 1)


def test_retry_says_what_it_did(park, parking):
    assert park("retry", "3").stdout.splitlines()[1:] == [
        "1 waits behind an earlier record of its key that is still parked: 1"
    ]
    assert park("retry", "1").stdout == "put back: 1 parked record, and 1 held behind them\n"
    assert json.loads(park("retry", "--all", "--json").stdout)["parked"] == 1
    assert parking.ids() == ([1, 2, 3, 4], [], [])


def test_retry_follows_the_policy(park, parking):
    assert park("retry", "3", HARVEST_PARKING="skip").stdout.startswith("put back: 0 parked records, and 1 held")


def test_drop_asks_first(park, parking, environment, dsn):
    refused = park("drop", "--all")
    assert (refused.returncode, parking.ids()[1]) == (2, [1, 2])
    variables = {**environment, "HARVEST_DSN": dsn}
    for answer, left in (("n", [1, 2]), ("y", [2])):
        with closing(Screen(["park", "drop", "--key", "o-1"], environment=variables)) as screen:
            screen.until("Delete 1 parked record permanently?")
            screen.type(f"{answer}\n")
            assert screen.rest() == (1 if answer == "n" else 0)
        assert parking.ids()[1] == left
    assert parking.ids() == ([3, 4], [2], [])
    assert park("drop", "2", "--yes").stdout.startswith("dropped: 1 parked record;")
    assert json.loads(park("drop", "--key", "o-1", "--yes", "--json").stdout) == {"dropped": 0, "released": 0}


@pytest.mark.parametrize("arguments", [[], ["1", "--all"], ["1", "--topic", "t"], ["--all", "--key", "k"], ["one"]])
@pytest.mark.parametrize("command", ["retry", "drop"])
def test_what_is_meant_must_be_said(park, command, arguments):
    assert park(command, *arguments).returncode == 2


def test_status_counts_them_and_goes_on_without_the_table(harvest, parking, dsn):
    solo = {"HARVEST_DSN": dsn}
    status = json.loads(harvest("status", "--json", **solo).stdout)
    assert (status["parked_records"], status["held_records"]) == (2, 1)
    parking.connection.execute("DROP TABLE outbox_parked")
    status = json.loads(harvest("status", "--json", **solo).stdout)
    assert (status["parked_records"], status["held_records"], status["backlog_records"]) == (None, None, 1)
    assert "parked" not in harvest("status", **solo).stdout
    assert harvest("park", "list", **solo).returncode == 4


def test_pump_writes_and_sums_up(harvest, outbox, reaper):
    pumped = harvest("pump", "-f", reaper, "--keys", "5", "--records", "1234", "--transaction", "100", "--blank")
    assert pumped.stdout.startswith("1,234 records in 13 transactions")
    assert pumped.stderr == ""
    assert outbox.count() == 1234


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--keys 0 --records 1", 2),
        ("--records 1", 2),
        ("--keys 1", 2),
        ("--keys 1 --records 1 --interval 5", 2),
        ("--keys 1 --records 1 --interval -5s", 2),
        ("--keys 1 --records 1 --topic no/topic", 2),
        ("--keys 1 --records 1 --blank --value-size 3", 2),
        ("--keys 1 --records 1", 4),  # there is no table
    ],
)
def test_pump_refuses_wrong_options_and_a_missing_table(harvest, dsn, options, code):
    assert harvest("pump", *options.split(), HARVEST_DSN=dsn).returncode == code


def test_pump_shows_its_progress_and_ends_cleanly_on_ctrl_c(environment, outbox, dsn):
    arguments = ["pump", "--keys", "5", "--records", "1000000", "--interval", "1ms"]
    with closing(Screen(arguments, environment={**environment, "HARVEST_DSN": dsn})) as screen:
        screen.until(" of 1,000,000 records ")
        eventually(outbox.count, "something is written")
        screen.process.send_signal(signal.SIGINT)
        assert screen.rest() == 130
    *_, summary, interrupted = screen.lines[:-1]
    assert f"{outbox.count():,} records in {outbox.count() // 20:,} transactions" in summary
    assert interrupted.startswith("interrupted: ")


@pytest.mark.full
def test_run_has_a_status_line_only_for_a_person(reaper, outbox, allowed):
    outbox.fill(300)
    for options, expected in (([], True), (["--no-status"], False), (["--log-format", "json"], False)):
        with closing(Screen(["run", "-f", reaper, *options], environment=allowed("run", "-f", reaper))) as screen:
            screen.until("leader_acquired")
            if expected:
                screen.until("  delivered 300  ")
            screen.process.send_signal(signal.SIGINT)
            assert screen.rest() == 0
        assert (" in flight " in screen.plain) is expected
        log = [line for line in screen.lines if line]
        assert [line for line in log if not line.startswith(("20", "{"))] == [], "whole lines of the log only"
        assert "harvester_stopped" in log[-1]


def test_who_does_not_see_the_rows_of_the_outbox_takes_none_for_gone(in_batches):
    """A role with grants on the list alone, or one that a policy hides rows from."""
    records = ParkedIdTable(OutboxTable.parse("outbox"))
    role = sql.Identifier(f"clerk {uuid.uuid4()}")
    in_batches.execute(sql.SQL("CREATE ROLE {}").format(role))
    try:
        in_batches.execute(sql.SQL("GRANT SELECT, UPDATE, DELETE ON outbox_parked_ids TO {}").format(role))
        for change in ("SELECT", "GRANT SELECT ON outbox TO {}; ALTER TABLE outbox ENABLE ROW LEVEL SECURITY"):
            in_batches.execute(sql.SQL(change).format(role))
            with in_batches.transaction(force_rollback=True):
                in_batches.execute(sql.SQL("SET LOCAL ROLE {}").format(role))
                found = [(each.id, each.gone) for each in records.list(in_batches)]
                assert found == [(1, False), (2, False), (3, False)]
                assert records.drop(in_batches, ParkedSelection()).released == 1, "what is held is not dropped"
    finally:
        in_batches.execute(sql.SQL("DROP OWNED BY {}").format(role))
        in_batches.execute(sql.SQL("DROP ROLE {}").format(role))


def test_list_says_which_rows_are_gone(park, in_batches):
    in_batches.execute("DELETE FROM outbox WHERE id = 1")
    assert "no longer in the outbox" in park("list").stdout
    assert [each["gone"] for each in json.loads(park("list", "--json").stdout)] == [True, False, False]
    assert "no longer in the outbox" in park("retry", "1").stderr
    assert json.loads(park("drop", "1", "--yes", "--json").stdout) == {"dropped": 1, "released": 0}
    assert entries(in_batches) == {("d", 2): False, ("d", 3): False, ("o", 4): False}
