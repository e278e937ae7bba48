"""The adaptor for Kafka beyond the contract: keys, what is refused, positions that are lost."""

import json
import threading

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions
from support.outbox import read_topic
from support.pipeline_ends import KafkaSource, KafkaTarget, collect
from support.raw_headers import write_raw_header
from support.servers import own_cluster
from support.topics import recreate

from harvest_lib.errors import AdaptorError, KafkaUnavailable, MessageRefused, PositionLost, TopicMissing
from harvest_lib.local_stack.kafka import KafkaCluster
from harvest_lib.pipeline.adaptors import reading
from harvest_lib.pipeline.adaptors.kafka import reader as kafka_reader_module
from harvest_lib.pipeline.message import Op, PipelineMessage

pytestmark = pytest.mark.gate


def message(op=Op.INSERT, namespace="public.t", offset=7, **data):
    return PipelineMessage(op, 1_356_999_300_000, namespace, data, offset=offset)


# -- writing


@pytest.fixture
def write(bootstrap_servers):
    writers = []

    def written(*messages, **options):
        writers.append(KafkaTarget(bootstrap_servers, "", "envelope").writer(**{"key": {}, **options}))
        writers[-1].write(messages)

    yield written
    for each in writers:
        each.close()


def test_keys_name_the_row_and_the_namespace_where_a_topic_has_several(write, bootstrap_servers, make_topic):
    topic = make_topic(partitions=4)
    write(message(id=1, n="a"), message(namespace="u", x=1), topic=topic, key={"public.t": ["id"]})
    keys = {json.dumps(json.loads(each.key)) for each in read_topic(bootstrap_servers, topic)}
    assert keys == {'{"namespace": "public.t", "key": {"id": 1}}', '{"namespace": "u"}'}


@pytest.mark.quick
def test_a_table_in_order_by_key_and_deletes_as_tombstones(write, bootstrap_servers, make_topic):
    topic = make_topic(partitions=4)
    changes = [message(namespace=topic, id=n % 5, n=n) for n in range(100)]
    write(*changes, message(Op.DELETE, namespace=topic, id=3), key={topic: ["id"]}, content="data")
    found = read_topic(bootstrap_servers, topic)
    for key in range(5):
        of_key = [each for each in found if json.loads(each.key) == {"id": key}]
        assert len({each.partition for each in of_key}) == 1
        numbers = [json.loads(each.value)["n"] if each.value else None for each in of_key]
        assert numbers == [*range(key, 100, 5), *([None] if key == 3 else [])]


def test_a_topic_that_is_missing_is_told_or_made_if_that_is_wanted(write, bootstrap_servers, unique):
    topic = unique("missing")
    with pytest.raises(TopicMissing, match=f"{topic}.* does not exist"):
        write(message(id=1), topic=topic)
    write(message(id=1), topic=topic, partitions=2)
    assert len(read_topic(bootstrap_servers, topic)) == 1


@pytest.mark.parametrize(
    ("bad", "options", "says"),
    [
        (message(note="x"), {"key": {"public.t": ["id"]}}, "message 7 has no key"),
        (message(id=None), {"key": {"public.t": ["id"]}}, "message 7 has no key"),
        (message(id=1), {"key": {"public.u": ["id"]}, "content": "data", "topic": "x{namespace}"}, "message 7 cannot"),
        (message(namespace="a b", id=1), {"topic": "{namespace}"}, "no name that Kafka takes"),
    ],
)
def test_what_kafka_cannot_take_is_refused_before_anything_is_sent(write, make_topic, bad, options, says):
    topic = make_topic()
    with pytest.raises(AdaptorError, match=says):
        write(bad, **{"topic": topic, **options})


def test_a_message_that_the_topic_is_too_small_for_is_named_and_the_writer_goes_on(bootstrap_servers, make_topic):
    topic = make_topic(**{"max.message.bytes": 2_000})
    writer = KafkaTarget(bootstrap_servers, topic, "envelope").writer(key={})
    with pytest.raises(MessageRefused, match="message 8"):
        writer.write([message(namespace=topic, offset=8, note="x" * 3_000)])
    with pytest.raises(MessageRefused, match="one of 2 messages, from 9 to 10"):
        writer.write([message(namespace=topic, offset=9 + n, note="x" * (3_000 * n)) for n in range(2)])
    with pytest.raises(MessageRefused, match="message 9"):
        writer.write([message(namespace=topic, offset=9, note="x" * 3_000_000)])  # the client's own limit
    writer.write([message(namespace=topic, offset=10, note="fits")])
    writer.close()
    assert [json.loads(each.value)["data"] for each in read_topic(bootstrap_servers, topic)] == [{"note": "fits"}]


def test_a_time_that_the_topic_does_not_take_is_told_by_the_message(bootstrap_servers, make_topic):
    topic = make_topic(**{"message.timestamp.after.max.ms": 3_600_000})
    writer = KafkaTarget(bootstrap_servers, topic, "envelope").writer(key={})
    with pytest.raises(MessageRefused, match="message 8"):
        writer.write([message(namespace=topic, offset=8)._replace(timestamp=4_102_444_800_000)])
    writer.close()


def test_brokers_that_are_away_are_told():
    writer = KafkaTarget("127.0.0.1:9", "t", "envelope").writer(delivery_timeout="1s")
    with pytest.raises(KafkaUnavailable):
        writer.write([message(namespace="t", id=1)])
    writer.close()


_FROZEN_SECONDS = 5.0
"""Longer than the shorter of the timeouts."""


@pytest.fixture
def broker(parts, tmp_path):
    """One that may be frozen."""
    with own_cluster(KafkaCluster(tmp_path / "kafka", parts=parts)) as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize("timeout", ["60s", "2s"])
def test_through_brokers_that_freeze_each_key_ends_with_its_last_message(broker, unique, timeout):
    topic, total = unique("frozen"), 20_000
    options = {"partitions": 3, "key": {topic: ["id"]}, "delivery_timeout": timeout}
    writer = KafkaTarget(broker.bootstrap_servers, topic, "envelope").writer(**options)
    messages = [message(Op.UPDATE, topic, number, id=number % 50, n=number) for number in range(total)]
    thaw = threading.Timer(_FROZEN_SECONDS, broker.resume)
    done, size, failures = 0, 2_000, 0
    while done < total:
        if done == total / 2 and not failures:
            broker.suspend()
            thaw.start()
        try:
            writer.write(messages[done : done + size])
        except KafkaUnavailable:
            size, failures = 1, failures + 1  # as a pipeline resumes
        else:
            done, size = done + size, 2_000
    thaw.join()
    writer.close()
    found = {}
    for record in read_topic(broker.bootstrap_servers, topic):
        found.setdefault(json.loads(record.key)["id"], []).append(json.loads(record.value)["data"]["n"])
    assert {key: numbers[-1] for key, numbers in found.items()} == {key: total - 50 + key for key in range(50)}
    assert {number for numbers in found.values() for number in numbers} == set(range(total))
    if timeout == "60s":
        assert not failures
        assert all(numbers == sorted(set(numbers)) for numbers in found.values())
    else:
        assert failures


# -- reading


@pytest.fixture
def source(bootstrap_servers, make_topic):
    return KafkaSource(bootstrap_servers, make_topic())


def produce(source, *records):
    producer = Producer({"bootstrap.servers": source.servers})
    producer.list_topics(source.namespace, 60)
    for each in records:
        producer.produce(source.namespace, **each)
    assert producer.flush(60) == 0


def test_records_of_others_are_taken_as_they_are(source, reader):
    produce(source, {"value": b"\xff", "key": "k", "headers": [("h", b"v"), ("n", None)]}, {})
    found, _ = collect(reader(content="record"), until=lambda found, _: len(found) == 2)
    assert found[0].data == {
        "key": "k",
        "value": b"\xff",
        "headers": [["h", "v"], ["n", None]],
        "partition": 0,
        "offset": 0,
    }
    assert found[1].data["value"] is None


def test_headers_that_the_client_cannot_read_are_null_and_stop_nothing(source, reader):
    write_raw_header(source.servers, source.namespace, b"\xff\xfe")
    produce(source, {"headers": []}, {"headers": [("h", b"")]})
    found, _ = collect(reader(content="record"), until=lambda found, _: len(found) == 3)
    assert [each.data["headers"] for each in found] == [None, [], [["h", ""]]]
    assert found[0].data["value"] == "v"


def test_a_last_record_with_headers_that_the_client_cannot_read_is_known_again(source, reader):
    write_raw_header(source.servers, source.namespace, b"\xff\xfe", value=b'{"id":1}', key=b'{"id":1}')
    _, last = collect(reader(content="data"), until=lambda found, _: len(found) == 1)
    produce(source, {"value": '{"id":2}', "key": '{"id":2}'})
    found, _ = collect(reader(content="data"), last, until=lambda found, _: len(found) == 1)
    assert [each.data for each in found] == [{"id": 2}]


def test_rows_and_tombstones(source, reader):
    produce(source, {"value": '{"id":1}', "key": '{"id":1}'}, {"key": '{"id":1}'})
    found, _ = collect(reader(content="data"), until=lambda found, _: len(found) == 2)
    assert [(each.op, each.data) for each in found] == [(Op.INSERT, {"id": 1}), (Op.DELETE, {"id": 1})]


def test_a_record_that_is_no_message_is_named_by_its_offset(source, reader):
    source.put(1)
    produce(source, {"value": "secret"})
    with pytest.raises(MessageRefused, match="partition 0, offset 1") as refused:
        collect(reader(), until=lambda found, _: len(found) == 2)
    assert "secret" not in str(refused.value)


def test_from_the_end_only_what_is_written_later(source, reader):
    source.put(1)
    batches = reader(start="end").read({})
    (place,) = next(batches)
    assert place.data["offsets"] == {"0": 1}
    source.put(2)
    assert next(batch for batch in batches if batch)[0].data["id"] == 2


def test_partitions_that_are_added_are_read_from_their_beginning(source, reader, admin, monkeypatch):
    monkeypatch.setattr(kafka_reader_module, "_LOOK_SECONDS", 0.2)
    source.put(1)
    batches = reader(start="end").read({})
    next(batches)
    admin.create_partitions([NewPartitions(source.namespace, 2)])[source.namespace].result(60)
    envelope = json.dumps({"op": "insert", "timestamp": 1, "namespace": "t", "data": {"id": 9}})
    produce(source, {"value": envelope, "partition": 1})
    found = next(batch for batch in batches if any(each.op is Op.INSERT for each in batch))
    assert found[0].data == {"id": 9}


@pytest.mark.parametrize(("offset", "says"), [(1, "no longer has"), (9, "was recreated")])
def test_a_position_that_the_topic_does_not_have_is_an_error(source, reader, admin, offset, says):
    source.put(1, 2, 3)
    admin.delete_records([TopicPartition(source.namespace, 0, 2)])[TopicPartition(source.namespace, 0)].result(60)
    place = PipelineMessage(Op.NOOP, 1, f"kafka/{source.namespace}", {"offsets": {"0": offset}})
    with pytest.raises(PositionLost, match=says) as error:
        next(reader().read({place.namespace: place}))
    assert error.value.wears_off is (offset > 3), "an end grows, a beginning does not go back"


def test_behind_the_end_of_a_transaction_an_emptied_topic_has_lost_nothing(source, reader, admin, unique):
    producer = Producer({"bootstrap.servers": source.servers, "transactional.id": unique("id")})
    producer.init_transactions(60)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(source.namespace, '{"op":"insert","timestamp":1,"namespace":"t","data":{"id":1}}')
        producer.flush(60)
        end(60)
    place = f"kafka/{source.namespace}"
    # Offset 0 is the record, 1 the end of its transaction, 2 an aborted record, 3 its end.
    found, last = collect(reader(), until=lambda _, last: last[place].data["offsets"] == {"0": 4})
    assert [each.data["id"] for each in found] == [1]
    admin.delete_records([TopicPartition(source.namespace, 0, 4)])[TopicPartition(source.namespace, 0)].result(60)
    source.put(2)
    found, _ = collect(reader(), last, until=lambda found, _: bool(found))
    assert [each.data["id"] for each in found] == [2]


class Lagging:
    """A client that is told of fewer partitions, or of an earlier end, so many times."""

    def __init__(self, settings, late):
        self._real, self.late = Consumer(settings), late

    def __getattr__(self, name):
        return getattr(self._real, name)

    def _is_late(self):
        self.late -= 1
        return self.late >= 0

    def list_topics(self, topic, timeout):
        found = self._real.list_topics(topic, timeout)
        if self._is_late():
            del found.topics[topic].partitions[1]
        return found


class LaggingEnd(Lagging):
    def list_topics(self, topic, timeout):
        return self._real.list_topics(topic, timeout)

    def get_watermark_offsets(self, partition, **how):
        low, high = self._real.get_watermark_offsets(partition, **how)
        return low, (0 if self._is_late() else high)


@pytest.mark.parametrize("lagging", [Lagging, LaggingEnd])
@pytest.mark.parametrize("late", [2, 10**9])
def test_what_a_broker_does_not_know_yet_is_not_lost(
    bootstrap_servers, make_topic, reader_of, monkeypatch, lagging, late
):
    monkeypatch.setattr(kafka_reader_module, "_SECOND_LOOK_SECONDS", 0.5, raising=False)
    source = KafkaSource(bootstrap_servers, make_topic(partitions=2))
    envelope = json.dumps({"op": "insert", "timestamp": 1, "namespace": "t", "data": {"id": 1}})
    produce(source, {"value": envelope, "partition": 0}, {"value": envelope, "partition": 1})
    _, last = collect(reader_of(source), until=lambda found, _: len(found) == 2)
    again = reader_of(source, provider=lambda settings: lagging(settings, late))
    if late > 2:
        kind = KafkaUnavailable if lagging is Lagging else PositionLost
        with pytest.raises(kind) as refused:
            next(again.read(last))
        assert refused.value.wears_off is (lagging is LaggingEnd)
    else:
        next(again.read(last))


@pytest.fixture
def reader_of():
    made = []

    def make(source, **how):
        options = reading("kafka").options(kafka={"bootstrap.servers": source.servers}, topics=[source.namespace])
        made.append(kafka_reader_module.KafkaReader(options, **how))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def made_again(source, reader, admin):
    """Read a record, and put another log, of three other records, in the place of the topic's; return the position."""
    source.put(1)
    _, last = collect(reader(), until=lambda found, _: bool(found))
    recreate(admin, source.namespace)
    KafkaSource(source.servers, source.namespace).put(7, 8, 9)
    return last


def test_a_topic_that_was_made_again_is_known_by_its_id_however_much_it_holds(made_again, reader):
    with pytest.raises(PositionLost, match="was recreated"):
        next(reader().read(made_again))


def test_a_log_that_lost_its_end_is_known_by_its_records_however_much_it_holds(source, made_again, reader):
    """The same log, as far as its id tells: of a broker whose volume was put back."""
    place = made_again[f"kafka/{source.namespace}"]
    last = {place.namespace: place._replace(data={**place.data, "id": ""})}
    for _ in range(2):
        with pytest.raises(PositionLost, match="lost its end, and has grown again") as refused:
            next(reader().read(last))
        assert refused.value.wears_off
    del place.data["last"]
    found, _ = collect(
        reader(),
        last={place.namespace: place._replace(data={**place.data, "id": ""})},
        until=lambda found, _: len(found) == 2,
    )
    assert [each.data["id"] for each in found] == [8, 9], "from a position without a record it goes on"


def test_a_topic_that_is_not_there(bootstrap_servers, unique):
    made = KafkaSource(bootstrap_servers, unique("nowhere")).reader()
    with pytest.raises(TopicMissing):
        next(made.read({}))
    made.close()


def test_it_joins_no_group(source, reader, bootstrap_servers):
    source.put(1)
    collect(reader(), until=lambda found, _: bool(found))
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "harvest-pipeline"})
    (place,) = consumer.committed([TopicPartition(source.namespace, 0)], 60)
    consumer.close()
    assert place.offset < 0
