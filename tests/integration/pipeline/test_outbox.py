"""The outbox as a source of pipelines, beyond the contract: its subscription, retention, what is refused."""

from contextlib import closing

import pytest
from support.pipeline_ends import OutboxSource, collect, opened, own_database

from harvest_lib import append
from harvest_lib.errors import CheckpointError, OutboxTableError
from harvest_lib.outbox import OutboxTable
from harvest_lib.pipeline.adaptors import reading
from harvest_lib.record import OutboxRecord
from harvest_lib.source import Selection
from harvest_lib.subscriptions.admin import Subscriptions

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def dsn(stack):
    with own_database(stack) as made:
        yield made


@pytest.fixture
def outbox_source(dsn):
    made = OutboxSource(dsn)
    yield made
    made.close()


def read_once(source, count=1):
    """Read so many records, and have them kept; return the last of each namespace."""
    with closing(source.reader()) as made:
        _, last = collect(made, until=lambda found, _: len(found) == count)
        made.kept(last)
    return last


def standing(source):
    statement = "SELECT low_watermark::text, checkpoint FROM outbox_subscriptions WHERE subscription = 'pipeline'"
    return source.connection.execute(statement).fetchone()


def subscriptions(source):
    table = OutboxTable.parse("outbox")
    return Subscriptions(source.connection, table, Selection(table=table.identifier))


def test_retention_is_told_by_kept_and_never_before(outbox_source):
    outbox_source.put(1, 2)
    made = outbox_source.reader()
    found, last = collect(made, until=lambda found, _: len(found) == 2)
    assert found[0].data == {"id": found[0].data["id"], "key": "k", "value": "1", "headers": []}
    assert standing(outbox_source)[1] is None
    made.kept(last)
    seen, checkpoint = standing(outbox_source)
    assert checkpoint["position"] == last["outbox/pipeline"].data["position"]
    assert seen == checkpoint["position"]["prev"]
    made.close()


def test_of_two_by_one_subscription_the_earlier_stops(outbox_source):
    outbox_source.put(1)
    first, second = outbox_source.reader(), outbox_source.reader()
    _, last = collect(first, until=lambda found, _: bool(found))
    next(second.read({}))
    with pytest.raises(CheckpointError, match="another's by now"):
        first.kept(last)
    first.close()
    second.close()


def test_a_subscription_that_was_made_anew_is_not_taken_for_the_old_one(outbox_source):
    outbox_source.put(1)
    last = read_once(outbox_source)
    raised = {"outbox/pipeline": last["outbox/pipeline"]._replace(data={**last["outbox/pipeline"].data, "number": 0})}
    with closing(outbox_source.reader()) as made, pytest.raises(CheckpointError, match="is not the subscription of"):
        next(made.read(raised))


def test_one_that_is_rewound_goes_on_from_there(outbox_source):
    outbox_source.put(1, 2)
    last = read_once(outbox_source, 2)
    subscriptions(outbox_source).rewind("pipeline", to="beginning")
    with closing(outbox_source.reader()) as made:
        again = next(batch for batch in made.read(last) if batch)
        rewound = standing(outbox_source)
        made.kept(last)  # of before: it says nothing any more
        assert standing(outbox_source) == rewound
        made.kept({each.namespace: each for each in again})
        assert [each.data["value"] for each in again[:-1]] == ["1", "2"]
        assert standing(outbox_source)[1]["number"] == again[-1].data["number"]


def test_one_that_was_removed_is_not_begun_anew_as_if_nothing_had_been(outbox_source):
    outbox_source.put(1)
    last = read_once(outbox_source)
    outbox_source.connection.execute("DELETE FROM outbox_subscriptions")
    with closing(outbox_source.reader()) as made, pytest.raises(CheckpointError, match="not there any more"):
        next(made.read(last))


def test_one_with_a_filter_reads_what_that_lets_through(outbox_source):
    subscriptions(outbox_source).add("pipeline", topics=["wanted"])
    outbox_source.put(1)
    append(outbox_source.connection, [OutboxRecord(topic="wanted", key="k", value="2")])
    with closing(outbox_source.reader()) as made:
        found, _ = collect(made, until=lambda found, _: bool(found))
    assert [each.data["value"] for each in found] == ["2"]


def test_goharvests_table_is_refused(outbox_source):
    OutboxTable.parse("theirs").create(outbox_source.connection)
    made = opened(reading("outbox"), data_source=outbox_source.dsn, outbox_table="theirs", subscription="pipeline")
    with closing(made), pytest.raises(OutboxTableError, match="goharvest's layout"):
        next(made.read({}))


def test_while_the_database_is_away_it_is_waited_for(outbox_source):
    outbox_source.put(1)
    made = outbox_source.reader()
    batches = made.read({})
    next(batch for batch in batches if batch)
    outbox_source.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    outbox_source.put(2)
    assert next(batch for batch in batches if batch)[0].data["value"] == "2"
    made.close()
