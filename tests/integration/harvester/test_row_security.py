"""Row-level security that hides rows from the harvester: it must not pass rows that it does not see."""

import logging

import pytest
from support.secured import MARK, MARK_BATCHES, OUTBOX, SNAPSHOT
from support.waiting import eventually
from typer.testing import CliRunner

from harvest_lib import OutboxRecord, append
from harvest_lib.cli import app
from harvest_lib.errors import DatabaseAccessDenied
from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.outbox.segments import Segments, drop_passed
from harvest_lib.source import SnapshotSource, TransactionIdSource
from harvest_lib.source.selection import Selection

pytestmark = pytest.mark.full

TRANSACTION_ID = {**SNAPSHOT, "source": "transaction_id", "delivery": "barrier"}
WAYS = [MARK, SNAPSHOT, TRANSACTION_ID, MARK_BATCHES]
NAMES = ["mark", "snapshot", "transaction_id", "mark_batches"]

ENABLE = "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY"
EVEN = "CREATE POLICY even ON outbox FOR ALL TO harvester USING (id % 2 = 0)"
ALL = "CREATE POLICY everything ON outbox FOR ALL TO harvester USING (true)"
RESTRICTIVE = "CREATE POLICY fewer ON outbox AS RESTRICTIVE FOR ALL TO PUBLIC USING (kafka_key <> 'k1')"


def write(secured, count):
    """Write as the owner, to whose statements no policy applies."""
    records = [OutboxRecord(topic=secured.topic, key=f"k{number % 3}", value=f"v{number}") for number in range(count)]
    append(secured.owner, records)


def denials(caplog):
    return [
        record.reason
        for record in caplog.records
        if record.getMessage() == "database_access_denied" and record.levelno == logging.ERROR
    ]


def run(secured, *statements):
    for statement in statements:
        secured.owner.execute(statement)


# -- at the start


@pytest.mark.parametrize("policies", [(), (EVEN,), (ALL, RESTRICTIVE)], ids=["none", "some", "restrictive"])
@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_a_harvester_from_whom_rows_are_hidden_does_not_start(secured, way, policies):
    secured.prepare(way)
    run(secured, ENABLE, *policies)
    with pytest.raises(DatabaseAccessDenied, match="row-level security hides rows") as refused:
        Harvest(secured.config(**way)).start()
    assert "outbox" in refused.value.evidence
    assert "harvest grants postgres" in refused.value.next_step


@pytest.mark.parametrize("way", [MARK, MARK_BATCHES], ids=["mark", "mark_batches"])
def test_to_see_all_rows_is_not_enough_where_they_are_marked(secured, way):
    secured.prepare(way)
    run(secured, ENABLE, ALL.replace("FOR ALL", "FOR SELECT"))
    with pytest.raises(DatabaseAccessDenied, match="row-level security hides rows"):
        Harvest(secured.config(**way)).start()


def test_parked_records_that_are_hidden_would_hold_nothing(secured):
    secured.prepare(MARK)
    run(secured, "ALTER TABLE outbox_parked ENABLE ROW LEVEL SECURITY")
    with pytest.raises(DatabaseAccessDenied, match="row-level security hides rows"):
        Harvest(secured.config(**MARK)).start()


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_what_is_printed_shows_all_rows(secured, way):
    secured.prepare(way)
    write(secured, 11)
    run(secured, ENABLE, EVEN)
    secured.grant(**way)
    assert Harvest(secured.config(**way)).drain(60).records == 11


def test_the_script_makes_no_policy_where_row_level_security_is_off(secured):
    secured.prepare(MARK)
    assert secured.owner.execute("SELECT count(*) FROM pg_policy").fetchone() == (0,)


# -- while it runs


@pytest.mark.parametrize("after", [(EVEN,), ()], ids=["some", "none"])
@pytest.mark.parametrize("before", [(), (ENABLE, ALL)], ids=["off before", "all rows before"])
@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_rows_that_are_hidden_while_it_runs_are_not_passed(secured, caplog, way, before, after):
    secured.prepare(way)
    run(secured, *before)
    if before:
        secured.grant(**way)
        run(secured, 'DROP POLICY IF EXISTS "harvester of harvest" ON outbox')
    with Harvest(secured.config(**way)) as harvest:
        write(secured, 3)
        eventually(lambda: harvest.delivered_records == 3, "it delivers")
        with secured.owner.transaction():
            run(secured, "DROP POLICY IF EXISTS everything ON outbox", ENABLE, *after)
            write(secured, 11)
        eventually(lambda: denials(caplog), "it says so")
        assert "row-level security" in denials(caplog)[-1] or "policy" in denials(caplog)[-1]
        assert harvest.state is State.RUNNING
        assert harvest.delivered_records == 3
        run(secured, "DROP POLICY IF EXISTS even ON outbox", ALL)
        expected = set(range(1, 15))
        eventually(lambda: {record.outbox_id for record in secured.arrived(14) or ()} == expected, "all arrive")


@pytest.mark.parametrize("make", [SnapshotSource, TransactionIdSource])
@pytest.mark.parametrize("before", [(), (ENABLE, ALL)], ids=["off before", "all rows before"])
@pytest.mark.parametrize("after", [(EVEN,), ()], ids=["some", "none"])
def test_neither_in_the_midst_of_a_batch_nor_by_id(secured, make, before, after):
    """Each query of a source tells: pages, their bounds, and records by their ids."""
    secured.prepare(SNAPSHOT)
    run(secured, *before)
    write(secured, 11)
    source = make(secured.dsn("harvester"), Selection(table=OUTBOX.identifier))
    try:
        position = source.open(None)
        page = source.read(2)
        assert [row[0] for row in page.rows] == [1, 2]
        with secured.owner.transaction():
            run(secured, "DROP POLICY IF EXISTS everything ON outbox", ENABLE, *after)
        read = [row[0] for row in page.rows]

        def go_on():
            while (more := source.read(2)) is not None:
                read.extend(row[0] for row in more.rows)

        with pytest.raises(DatabaseAccessDenied, match="row-level security"):
            go_on()  # a page or two were on their way
        assert read == list(range(1, len(read) + 1))
        with pytest.raises(DatabaseAccessDenied, match="row-level security"):
            source.load([1, 2, 3])
        with pytest.raises(DatabaseAccessDenied, match="row-level security"):
            source.close()
            source.open(position)  # a new connection looks again
    finally:
        source.close()


# -- commands that only look


def test_who_looks_does_not_count_less_than_there_is(secured):
    secured.prepare(SNAPSHOT)
    write(secured, 11)
    run(secured, ENABLE)
    variables = {**secured.variables(**SNAPSHOT), "HARVEST_DSN": secured.dsn("reader")}
    variables["HARVEST_BASE_KAFKA_CONFIG"] = secured.kafka_json("reader")
    for command in (["status"], ["audit", "--topic", secured.topic]):
        result = CliRunner().invoke(app, command, env={name: str(value) for name, value in variables.items()})
        assert isinstance(result.exception, DatabaseAccessDenied), result.output
        assert "row-level security" in str(result.exception)


def test_no_segment_goes_whose_readers_are_hidden_from_its_owner(secured):
    secured.prepare(SNAPSHOT)
    owner = secured.owner
    for table in ("outbox", "outbox_subscriptions"):
        for statement in (
            f"ALTER TABLE {table} OWNER TO writer",
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        ):
            owner.execute(statement)
        owner.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        with secured.connect("writer") as connection, pytest.raises(DatabaseAccessDenied, match="row-level security"):
            drop_passed(connection, OUTBOX, keep_seconds=0)
        owner.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    assert Segments(OUTBOX).read(owner)
