"""Records that Kafka can never take, among good ones, through real servers: each costs its own key and no other."""

from itertools import count

import pytest
from support.outbox import harvest_config, read_topic
from support.waiting import eventually

from harvest_lib.errors import RecordError
from harvest_lib.events import LeaderRefreshed
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.outbox.parking.parked_record import ParkedSelection

pytestmark = pytest.mark.gate

INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (now(), %s, %s, %s, %s, %s) RETURNING id
"""

WAYS = {"barrier": {}, "pipelined": {"delivery": "pipelined"}}
ESCAPES = '\'; DROP TABLE outbox; -- \\ " %s %(x)s {"a": "\\u0001"}\n\r\tü€😀 $1 E\'\\\\\''


@pytest.fixture
def insert(outbox):
    def one(key, value="v", *, topic=None, names=(), contents=()):
        values = (topic or outbox.topic, key, value, list(names), list(contents))
        return outbox.connection.execute(INSERT, values).fetchone()[0]

    return one


@pytest.fixture
def config(request, outbox, bootstrap_servers, group_id):
    way = getattr(request, "param", WAYS["barrier"])

    def make(**settings):
        merged = {**way, **settings}
        return harvest_config(outbox.dsn, bootstrap_servers, group_id, leadership="solo", **merged)

    return make


def parked(outbox):
    rows = outbox.connection.execute("SELECT id, held, reason FROM outbox_parked ORDER BY id").fetchall()
    return {record_id: "held" if held else reason for record_id, held, reason in rows}


def delivered(bootstrap_servers, topic):
    """Return the ids that arrived. A batch with a record that is refused is sent again without it."""
    return sorted({record.outbox_id for record in read_topic(bootstrap_servers, topic)})


both_deliveries = pytest.mark.parametrize("config", WAYS.values(), ids=WAYS, indirect=True)


@both_deliveries
def test_each_kind_of_bad_record_costs_its_own_key_only(outbox, insert, config, bootstrap_servers, make_topic):
    """I8, with a full backlog of good records around them."""
    small = make_topic(**{"max.message.bytes": 3_000})
    bad = {
        insert("unequal", names=["a", "b"], contents=["1"]): "2 header names, 1 header values",
        insert("nameless", names=[None], contents=["1"]): "a header without a name",
        insert("missing", topic=f"{small}.none"): "the topic does not exist",
        insert("illegal", topic="no/such topic"): "the topic's name is not legal in Kafka",
    }
    for number in range(200):
        insert(f"small-{number % 20}", "x" * 200, topic=small)
        if number == 100:
            large = insert("large", "y" * 9_000, topic=small)
    held = [insert("unequal"), insert("missing", topic=f"{small}.none")]
    held += [insert("large", topic=small), insert("large", topic=small)]
    good = [insert(key) for key in ("missing", "illegal", "large")]  # in another topic than what is bad
    good += [insert(f"good-{number % 20}") for number in range(200)]
    done = Harvest(config()).drain(60)
    found = parked(outbox)
    assert {record_id: found[record_id] for record_id in bad} == bad
    assert "size" in found.pop(large).lower()
    assert {record_id for record_id in found if record_id not in bad} == set(held)
    assert {found[record_id] for record_id in held} == {"held"}
    assert delivered(bootstrap_servers, outbox.topic) == good
    assert len(delivered(bootstrap_servers, small)) == 200
    assert done.records == 403
    assert outbox.count() == 0


def test_values_and_keys_arrive_as_they_were_written(outbox, insert, config, bootstrap_servers):
    """Whatever would need escaping somewhere, and the empty key, which is a key like any other."""
    insert("", "first")
    insert("", ESCAPES)
    insert(ESCAPES[:100], None, names=[ESCAPES, "", "a", "a"], contents=[ESCAPES, "", None, "2"])
    Harvest(config()).drain(60)
    records = sorted(read_topic(bootstrap_servers, outbox.topic), key=lambda record: record.outbox_id)
    assert [(record.key, record.value) for record in records] == [
        ("", "first"),
        ("", ESCAPES),
        (ESCAPES[:100], None),
    ]
    assert records[0].partition == records[1].partition
    assert records[2].headers == [(ESCAPES, ESCAPES.encode()), ("", b""), ("a", None), ("a", b"2")]
    assert parked(outbox) == {}


WRITTEN = '{"b": 1, "a": 1.0,"a":2, "z": "\\u0000\\u00e9"}'


def test_what_was_parked_and_put_back_arrives_as_it_was_written(
    outbox, insert, config, bootstrap_servers, make_topic, unique
):
    """Also a column of others, whose JSON has an order, a key twice, and a text that jsonb does not take."""
    topic = unique("later")
    outbox.connection.execute("ALTER TABLE outbox ADD COLUMN note json, ADD COLUMN notes json[]")
    headers = {"names": [ESCAPES, "", "a", "a"], "contents": [ESCAPES, "", None, "2"]}
    ids = [insert(ESCAPES[:100], value, topic=topic, **headers) for value in (WRITTEN, ESCAPES, None)]
    outbox.connection.execute("UPDATE outbox SET note = %s, notes = ARRAY[%s]::json[]", (WRITTEN, WRITTEN))
    Harvest(config()).drain(60)
    assert list(parked(outbox)) == ids
    table = ParkedRecords(OutboxTable.parse("outbox"))
    assert table.show(outbox.connection, ids[0]).row["note"] == WRITTEN
    table.retry(outbox.connection, ParkedSelection())
    notes = outbox.connection.execute("SELECT DISTINCT note::text, notes[1]::text FROM outbox").fetchall()
    assert notes == [(WRITTEN, WRITTEN)]
    make_topic(name=topic)
    Harvest(config()).drain(60)
    records = read_topic(bootstrap_servers, topic)
    assert [record.value for record in records] == [WRITTEN, ESCAPES, None]
    assert {record.key for record in records} == {ESCAPES[:100]}
    written = [(ESCAPES, ESCAPES.encode()), ("", b""), ("a", None), ("a", b"2")]
    assert [list(record.headers) for record in records] == [written] * 3


@pytest.mark.full
def test_a_topic_that_is_made_later_takes_the_records_of_other_keys(outbox, insert, config, make_topic, unique):
    """Only the key of the record that was parked is held."""
    topic = unique("later")
    first = insert("a", topic=topic)
    with Harvest(config()) as harvest:
        eventually(lambda: parked(outbox) == {first: "the topic does not exist"}, "the first is parked")
        make_topic(name=topic)
        others = (f"b{number}" for number in count())
        eventually(lambda: insert(next(others), topic=topic) and harvest.delivered_records, "others get through")
        second = insert("a", topic=topic)
        eventually(lambda: parked(outbox).get(second) == "held", "what follows is held")


@both_deliveries
def test_a_topic_that_is_removed_while_records_come(outbox, insert, config, admin, make_topic):
    """The topic is looked up again; its records are parked, and others go on."""
    doomed = make_topic(partitions=1)
    soon = {"topic.metadata.propagation.max.ms": 500, "topic.metadata.refresh.interval.ms": 500}
    insert("a", topic=doomed)
    with Harvest(config(producer_kafka_config=soon)) as harvest:
        eventually(lambda: harvest.delivered_records == 1, "the first is delivered")
        admin.delete_topics([doomed])[doomed].result(60)
        lost = insert("a", topic=doomed)
        insert("b")
        eventually(lambda: set(parked(outbox)) == {lost}, "it is parked")
        eventually(lambda: harvest.delivered_records == 2, "the other is delivered")


def test_under_stop_the_harvester_ends(outbox, insert, config):
    insert("a")
    bad = insert("b", topic="no/such topic")
    harvest = Harvest(config(parking="stop"))
    harvest.start()
    with pytest.raises(RecordError, match=f"record {bad} "):
        harvest.await_stopped(60)
    assert outbox.leaders() == set(), "I9"
    assert bad in [row[0] for row in outbox.connection.execute("SELECT id FROM outbox")]


@both_deliveries
def test_under_skip_the_key_goes_on(outbox, insert, config, bootstrap_servers):
    insert("a")
    bad = insert("a", names=["a"])
    insert("a")
    harvest = Harvest(config(parking="skip"))
    refreshed = []
    harvest.set_event_handler(lambda event: isinstance(event, LeaderRefreshed) and refreshed.append(event))
    harvest.drain(60)
    assert parked(outbox) == {bad: "1 header names, 0 header values"}
    assert delivered(bootstrap_servers, outbox.topic) == [1, 3]
    assert refreshed == [], "it was seen before anything was sent"


@both_deliveries
def test_what_is_retried_arrives_in_order_while_its_key_goes_on(
    outbox, insert, config, make_topic, unique, bootstrap_servers
):
    """The harvester holds more of the key all the while, until it finds that the key was released."""
    topic = unique("later")
    records = ParkedRecords(outbox.name)
    with Harvest(config()):
        ids = [insert("a", topic=topic), insert("a", topic=topic)]
        eventually(lambda: set(parked(outbox)) == set(ids), "both are parked")
        make_topic(name=topic)

        def arrived():
            records.retry(outbox.connection, ParkedSelection())  # the topic's absence is believed for a few seconds
            ids.append(insert("a", topic=topic))
            return delivered(bootstrap_servers, topic)

        eventually(arrived, "the first arrives")
        eventually(lambda: len(delivered(bootstrap_servers, topic)) == len(ids), "all arrive")
    assert list(dict.fromkeys(record.outbox_id for record in read_topic(bootstrap_servers, topic))) == ids
    assert parked(outbox) == {}


@both_deliveries
def test_a_new_row_with_a_parked_id_is_parked_too(outbox, insert, config, bootstrap_servers):
    """After TRUNCATE … RESTART IDENTITY. The old one keeps its place before all new ones of its key."""
    missing = f"{outbox.topic}.none"
    old = [insert("a", "old", topic=missing), insert("a", "old", topic=missing), insert("b", "old", topic=missing)]
    Harvest(config()).drain(60)
    outbox.connection.execute("TRUNCATE outbox RESTART IDENTITY")
    new = [insert("b", "new", topic=missing), insert("a", "new", topic=missing), insert("a", "new", topic=missing)]
    assert new == old
    good = insert("c")
    Harvest(config()).drain(60)
    assert delivered(bootstrap_servers, outbox.topic) == [good], "nobody else is held up"
    in_order = (
        "SELECT array_agg(record ->> 'kafka_value' ORDER BY id) FROM outbox_parked "
        "GROUP BY kafka_key ORDER BY kafka_key"
    )
    assert outbox.connection.execute(in_order).fetchall() == [(["old", "old", "new", "new"],), (["old", "new"],)]
    ids = "SELECT count(*), count(*) FILTER (WHERE id = (record ->> 'id')::bigint) FROM outbox_parked"
    assert outbox.connection.execute(ids).fetchone() == (6, 6)
    assert ParkedRecords(outbox.name).retry(outbox.connection, ParkedSelection()).held == 3
