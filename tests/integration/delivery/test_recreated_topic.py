"""A topic that is deleted and made again under its name while records come.

Its records are gone for readers, and Kafka had acknowledged them. Of all else nothing may be skipped: of each key the
new topic has the last records, without a gap and in order.
"""

from collections import defaultdict

import pytest
from support.outbox import harvest_config, read_topic
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.outbox.parking import ParkedIdTable, ParkedRecords, ParkedSelection

pytestmark = pytest.mark.full

WAYS = ["mark/barrier", "mark/pipelined", "snapshot/barrier", "snapshot/pipelined", "snapshot/transactional"]
RECORDS, KEYS = 1_000, 20
SOON = {"topic.metadata.propagation.max.ms": 500, "topic.metadata.refresh.interval.ms": 500}


@pytest.fixture(params=WAYS)
def way(request):
    source, delivery = request.param.split("/")
    return {"source": source, "delivery": delivery}


@pytest.fixture
def outbox(way, outbox, dsn, bootstrap_servers, group_id):
    if way["source"] == "mark":
        yield outbox
        return
    outbox.connection.execute("DROP TABLE outbox, outbox_parked")
    native = Subscribed(dsn, outbox.topic, bootstrap_servers, group_id)
    yield native
    native.close()


@pytest.fixture
def harvest(outbox, way, bootstrap_servers, group_id):
    settings = {**way, "leadership": "solo", "producer_kafka_config": SOON}
    return Harvest(harvest_config(outbox.dsn, bootstrap_servers, group_id, **settings))


def delete(admin, topic):
    """Delete a topic, and wait until nobody knows it."""
    admin.delete_topics([topic])[topic].result(60)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics, "it is gone")


def retried(outbox, way):
    """Retry the records parked for want of a topic; return True if none is left."""
    kind = ParkedRecords if way["source"] == "mark" else ParkedIdTable
    records = kind(outbox.name)
    if not (counts := records.counts(outbox.connection)).parked + counts.held:
        return True
    records.retry(outbox.connection, ParkedSelection())
    return False


def by_key(rows):
    found = defaultdict(list)
    for key, record_id in rows:
        if record_id not in found[key]:
            found[key].append(record_id)
    return found


@pytest.mark.parametrize("absent", [False, True], ids=["at_once", "after_a_while"])
def test_nothing_is_skipped_when_a_topic_is_made_again(
    outbox, way, harvest, admin, make_topic, bootstrap_servers, absent
):
    outbox.fill(RECORDS, keys=KEYS)
    with harvest:
        eventually(lambda: harvest.delivered_records > 0, "busy")
        delete(admin, outbox.topic)
        first = RECORDS + 1  # of those that nobody can have sent to the old one
        outbox.fill(200, keys=KEYS)
        if absent:
            kind = ParkedRecords if way["source"] == "mark" else ParkedIdTable
            eventually(lambda: kind(outbox.name).counts(outbox.connection).parked, "its absence is noticed")
        make_topic(name=outbox.topic, partitions=4)
        outbox.fill(200, keys=KEYS)
        last = set(range(RECORDS + 201, RECORDS + 401))

        def arrived():
            none_left = retried(outbox, way)
            records = read_topic(bootstrap_servers, outbox.topic, isolation="read_committed")
            return records if none_left and last <= {record.outbox_id for record in records} else None

        records = eventually(arrived, "all that came since", seconds=90)
        assert harvest.state is State.RUNNING
    everything = by_key((f"key-{number % KEYS}", number) for number in range(1, RECORDS + 401))
    found = by_key((record.key, record.outbox_id) for record in records)
    for key, ids in found.items():
        assert set(range(first, RECORDS + 401)) & set(everything[key]) <= set(ids), f"{key}: written since, not there"
        assert ids == everything[key][-len(ids) :], f"{key}: a gap, or another order"
