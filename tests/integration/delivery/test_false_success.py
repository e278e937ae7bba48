"""A producer's first request is refused by a broker that leads no more, its second taken by one that leads already.

librdkafka then calls the records of the first delivered, as implicitly acknowledged by the second: they are in no log.
Batches here are of three records, for only so small ones have company on the wire.
"""

import json
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.native import Native
from support.outbox import Outbox, harvest_config, read_topic, steps_back
from support.refusing import RefusingProxy

from harvest_lib.config.kafka_settings import IN_FLIGHT
from harvest_lib.errors import KafkaUnavailable
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.local_stack.kafka import KafkaCluster
from harvest_lib.native import implementation
from harvest_lib.outbox import append
from harvest_lib.pipeline.adaptors import writing
from harvest_lib.pipeline.adaptors.kafka.writer import KafkaWriter
from harvest_lib.pipeline.message import Op, PipelineMessage
from harvest_lib.record import OutboxRecord

pytestmark = pytest.mark.full

RECORDS = 120
PATIENCE_SECONDS = 60.0
"""For a second request that is sure to come, however slow the machine is."""
SMALL_BATCHES = {"batch.num.messages": 3}


@pytest.fixture(scope="module")
def way():
    """The way to the broker on which requests get lost."""
    with RefusingProxy() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def broker(way, parts, tmp_path_factory):
    """A broker that is reached by that way too."""
    cluster = KafkaCluster(tmp_path_factory.mktemp("kafka"), parts=parts, detours={"detour": [way.port]})
    try:
        cluster.start()
        way.forward_to("127.0.0.1", cluster.ports["detour-1"])
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
def topic(broker, group_id):
    """A topic of one partition."""
    name, admin = f"topic_{group_id}", AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    return name


def test_the_client_calls_delivered_what_is_in_no_log(broker, way, topic):
    """Why we look at offsets, or have one request at a time. Once this fails, see what decision 0019 has to say."""
    reported = {}
    producer = Producer(
        {"bootstrap.servers": f"127.0.0.1:{way.port}", "enable.idempotence": True, "linger.ms": 2, **SMALL_BATCHES}
    )
    way.refuse_next(patience_seconds=PATIENCE_SECONDS)
    for number in range(RECORDS):
        report = partial(lambda number, error, message: reported.update({number: (error, message.offset())}), number)
        producer.produce(topic, str(number), on_delivery=report)
    assert producer.flush(60) == 0
    assert way.overtaken == 1
    assert [error for error, _ in reported.values()] == [None] * RECORDS
    there = {int(each.value) for each in read_topic(broker.bootstrap_servers, topic)}
    lost = set(range(RECORDS)) - there
    assert 1 <= len(lost) <= 4
    assert {number for number, (_, offset) in reported.items() if offset is None} == lost


@pytest.mark.parametrize("delivery", ["barrier", "pipelined", "transactional", "sequenced"])
@pytest.mark.parametrize("source", ["mark", "snapshot"])
def test_what_the_client_calls_delivered_and_is_not_comes_all_the_same(
    broker, way, topic, dsn, group_id, source, delivery
):
    if source == "snapshot":
        outbox = Native(dsn, size=1_000_000)
        append(outbox.connection, [OutboxRecord(topic=topic, key=f"key-{n % 40}", value="v") for n in range(RECORDS)])
    else:
        Outbox(dsn, topic).fill(RECORDS, keys=100)
    config = harvest_config(
        dsn,
        f"127.0.0.1:{way.port}",
        group_id,
        source=source,
        leadership="solo",
        delivery=delivery,
        producer_kafka_config=SMALL_BATCHES,
    )
    looks_at_offsets = delivery == "transactional" and implementation().name == "native"
    way.refuse_next(patience_seconds=PATIENCE_SECONDS if looks_at_offsets else 1.0)
    Harvest(config).drain(60)
    assert way.refused == 1
    assert way.overtaken == (1 if looks_at_offsets else 0), "others have one request at a time on the wire"
    found = read_topic(broker.bootstrap_servers, topic, isolation="read_committed")
    assert {each.outbox_id for each in found} == set(range(1, RECORDS + 1))
    assert steps_back(found) == 0
    assert len(found) == RECORDS


def test_a_pipeline_has_one_request_at_a_time_on_the_wire(broker, way, topic):
    side = writing("kafka")
    kafka = {"bootstrap.servers": f"127.0.0.1:{way.port}", **SMALL_BATCHES}
    writer = side.make(side.options(kafka=kafka, topic=topic))
    way.refuse_next(patience_seconds=1.0)
    writer.write([PipelineMessage(Op.INSERT, number, "t", {"id": number}, offset=number) for number in range(RECORDS)])
    writer.close()
    assert (way.refused, way.overtaken) == (1, 0)
    found = [json.loads(each.value)["data"]["id"] for each in read_topic(broker.bootstrap_servers, topic)]
    assert found == list(range(RECORDS))


def test_a_pipeline_takes_nothing_for_written_that_has_no_offset(broker, way, topic):
    kafka = {"bootstrap.servers": f"127.0.0.1:{way.port}", **SMALL_BATCHES}
    side = writing("kafka")
    options = side.options(kafka=kafka, topic=topic)
    writer = KafkaWriter(options, provider=lambda settings: Producer({**settings, IN_FLIGHT: 5}))
    way.refuse_next(patience_seconds=PATIENCE_SECONDS)
    with pytest.raises(KafkaUnavailable, match="no broker has confirmed"):
        writer.write(
            [PipelineMessage(Op.INSERT, number, "t", {"id": number}, offset=number) for number in range(RECORDS)]
        )
    writer.close()
    assert way.overtaken == 1
