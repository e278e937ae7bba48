"""Publishers and readers of messages with ids, over a real Kafka."""

import json
import time
from itertools import chain

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.clock import Clock as SteppedClock
from support.sequenced import check_ids, read_ids
from support.waiting import eventually

from harvest_lib.consume import (
    Clock,
    Flag,
    Intent,
    Message,
    Publisher,
    Sequencer,
    new_producer_id,
    read_committed,
    read_uncommitted,
    reader,
)
from harvest_lib.errors import CheckpointError, KafkaUnavailable, TopicMissing

pytestmark = pytest.mark.gate


@pytest.fixture
def settings(bootstrap_servers):
    return {"bootstrap.servers": bootstrap_servers}


@pytest.fixture
def publish(settings):
    """Make publishers, each with an id of its own."""
    made = []

    def make(**options):
        publisher = Publisher(settings, producer_id=new_producer_id(), clock=Clock(time.time_ns), **options)
        made.append(publisher)
        return publisher

    yield make
    for publisher in made:
        publisher.close()


def end_of(settings, topic, partition):
    consumer = Consumer({**settings, "group.id": "asks"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)[1]
    finally:
        consumer.close()


def committed(settings, topic, sequencer, partition=0, **options):
    """Return the values of what is committed by now, by acknowledgement."""
    end = end_of(settings, topic, partition)
    groups = read_committed(settings, topic, partition, sequencer=sequencer, end=end, **options)
    found = [[message.record.value().decode() for message in group] for group in groups]
    return [values for values in found if values]


def test_a_transaction_is_read_once_it_is_acknowledged_in_each_partition(settings, make_topic, publish):
    topic, publisher = make_topic(partitions=2), publish()
    for number in range(10):
        publisher.publish_uncommitted(topic, b"%d" % number, partition=number % 2)
    intents = publisher.intents()
    assert [intent.partition for intent in intents] == [0, 1]
    readers = [Sequencer(), Sequencer()]
    assert [committed(settings, topic, reader, number) for number, reader in enumerate(readers)] == [[], []]
    assert [
        Intent.of_json(each) for each in json.loads(json.dumps([intent.to_json() for intent in intents]))
    ] == intents
    publisher.acknowledge(intents)
    publisher.acknowledge(intents)
    publisher.flush()
    assert committed(settings, topic, readers[0], 0) == [list("02468")]
    assert committed(settings, topic, readers[1], 1) == [list("13579")]
    assert not publisher.intents()


def test_each_id_ticks_also_those_of_acknowledgements_and_what_is_written_again_has_the_same(
    settings, make_topic, publish, bootstrap_servers
):
    topics, publisher = [make_topic(partitions=3), make_topic(partitions=3)], publish()
    for _ in range(2):
        for topic in topics:
            for number in range(6):
                publisher.publish_uncommitted(topic, b"%d" % number, partition=number % 3)
        intents = publisher.intents()
        kept = [Intent.of_json(each) for each in json.loads(json.dumps([each.to_json() for each in intents]))]
        publisher.acknowledge(intents)
    publisher.flush()
    by_partition = {
        (topic, number): ids for topic in topics for number, ids in read_ids(bootstrap_servers, topic).items()
    }
    check_ids(by_partition)
    assert {len(ids) for ids in by_partition.values()} == {6}
    newest = {each: ids[-1] for each, ids in by_partition.items()}
    assert {each.flag for each in newest.values()} == {Flag.ACK_TXN}
    after = publish()
    after.acknowledge(kept)
    after.flush()
    again = {(topic, number): ids for topic in topics for number, ids in read_ids(bootstrap_servers, topic).items()}
    assert again == {each: [*ids, newest[each]] for each, ids in by_partition.items()}


def test_acknowledgements_that_share_an_id_as_they_once_did_are_still_written(settings, make_topic, publish):
    """Checkpoints from before each had its own are loaded, and what they acknowledge is read."""
    topic, publisher = make_topic(partitions=2), publish()
    for number in range(4):
        publisher.publish_uncommitted(topic, b"%d" % number, partition=number % 2)
    shared = publisher.intents()[1].id
    after = publish()
    after.acknowledge([Intent.of_json([topic, number, shared.hex()]) for number in range(2)])
    after.flush()
    assert [committed(settings, topic, Sequencer(), number) for number in range(2)] == [[["0", "2"]], [["1", "3"]]]


def test_who_comes_after_acknowledges_what_was_kept_and_rolls_back_the_rest(settings, make_topic, publish):
    topic, old, new = make_topic(), publish(), publish()
    old.publish_uncommitted(topic, b"kept")
    intents = old.intents()
    old.publish_uncommitted(topic, b"never kept")
    old.flush()
    new.acknowledge(intents)
    new.publish_uncommitted(topic, b"again")
    new.acknowledge(new.intents())
    new.flush()
    sequencer = Sequencer()
    assert committed(settings, topic, sequencer) == [["kept"], ["again"]]
    assert sequencer.rolled_back == 1


def test_what_does_not_fit_the_ring_is_read_again_from_the_log(settings, make_topic, publish):
    topic, long, short = make_topic(), publish(), publish()
    for number in range(5_000):
        long.publish_uncommitted(topic, b"%d" % number)
        if number % 10 == 0:
            short.publish_committed(topic, b"short")
    short.flush()
    long.acknowledge(long.intents())
    long.flush()
    sequencer = Sequencer(ring=100)
    found = committed(settings, topic, sequencer)
    assert found[-1] == [str(number) for number in range(5_000)]
    assert list(chain(*found[:-1])) == ["short"] * 500
    assert sequencer.held == 0


def test_a_transaction_that_is_not_read_to_its_end_is_not_passed_over(settings, make_topic, publish):
    topic, publisher = make_topic(), publish()
    for _ in range(2):
        for number in range(10):
            publisher.publish_uncommitted(topic, b"%d" % number)
        publisher.acknowledge(publisher.intents())
    publisher.flush()
    groups = read_committed(settings, topic, 0, sequencer=Sequencer(ring=2))
    group = next(group for group in groups if group not in ((), []))
    next(iter(group))
    with pytest.raises(RuntimeError, match="not read to its end"):
        next(groups)


def test_transactions_that_are_read_again_share_a_client_which_fetches_no_further(settings, make_topic, publish):
    clients = []

    def provider(settings):
        clients.append(Watched(settings))
        return clients[-1]

    topic, publisher = make_topic(), publish()
    expected = [[f"{transaction}-{number}" for number in range(10)] for transaction in range(5)]
    for values in expected:
        for value in values:
            publisher.publish_uncommitted(topic, value.encode())
        publisher.acknowledge(publisher.intents())
    publisher.flush()
    assert committed(settings, topic, Sequencer(ring=2), provider=provider) == expected
    _, again = clients
    assert again.assigned == [0, 11, 22, 33, 44]
    assert again.left == 5


class Watched(Consumer):
    """A client that remembers the offsets it was to read from, and counts how often it was stopped."""

    def __init__(self, settings):
        super().__init__(settings)
        self.assigned, self.left = [], 0

    def assign(self, places):
        self.assigned += [place.offset for place in places]
        super().assign(places)

    def unassign(self):
        self.left += 1
        super().unassign()


def test_an_end_that_never_comes_is_no_endless_wait(settings, make_topic, monkeypatch):
    monkeypatch.setattr(reader, "_SILENCE_SECONDS", 1.0)
    with pytest.raises(KafkaUnavailable, match="nothing came from offset 0 on"):
        list(read_uncommitted(settings, make_topic(), 0, begin=0, end=1))


def test_a_publisher_whose_queue_is_full_does_not_wait_for_ever():
    settings = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": 10}
    publisher = Publisher(settings, producer_id=1, clock=Clock(time.time_ns), timeout_seconds=1)
    with pytest.raises(KafkaUnavailable, match="not taken within 1 s"):
        for _ in range(100):
            publisher.publish_uncommitted("topic", b"v")
    publisher.close()


def test_a_reader_goes_on_from_its_checkpoint(settings, make_topic, publish):
    topic, publisher = make_topic(), publish()
    publisher.publish_uncommitted(topic, b"before")
    publisher.flush()
    first = Sequencer()
    assert committed(settings, topic, first) == []
    publisher.publish_uncommitted(topic, b"after")
    publisher.acknowledge(publisher.intents())
    publisher.flush()
    second = Sequencer(offset=first.offset, states=first.states())
    assert committed(settings, topic, second) == [["before", "after"]]
    third = Sequencer(offset=second.offset, states=second.states())
    assert committed(settings, topic, third) == []


def test_messages_without_an_id_and_with_one_that_nobody_can_read_come_too(settings, make_topic):
    topic, producer = make_topic(), Producer(settings)
    producer.produce(topic, b"plain")
    producer.produce(topic, b"odd", headers=[("message-id", b"odd")])
    producer.flush(60)
    sequencer = Sequencer()
    assert committed(settings, topic, sequencer) == [["plain"], ["odd"]]
    assert sequencer.malformed == 1


@pytest.mark.parametrize("batch", [1, 2_000])
def test_the_id_is_the_first_of_that_name_among_any_headers(settings, make_topic, monkeypatch, batch):
    """One by one, too, as many with nothing but an id are read by a way of their own."""
    monkeypatch.setattr(reader, "_BATCH_MESSAGES", batch)
    shapes = [
        ([("message-id", b"1")], b"1"),
        (None, None),
        ([], None),
        ([("message-id", None)], b""),
        ([("message-id", b"")], b""),
        ([("Message-Id", b"2")], None),
        ([("other", b"3")], None),
        ([("other", None)], None),
        ([("other", b"4"), ("message-id", b"5")], b"5"),
        ([("message-id", b"6"), ("other", b"7")], b"6"),
        ([("message-id", b"8"), ("message-id", b"9")], b"8"),
        ([("message-id", None), ("message-id", b"10")], b""),
        ([("ab", b"cd"), ("ef", b"gh")], None),
        ([("message-id", b"11")], b"11"),
    ]
    topic, producer = make_topic(), Producer(settings)
    for number, (headers, _) in enumerate(shapes):
        producer.produce(topic, b"%d" % number, headers=headers)
    assert producer.flush(60) == 0
    found = _from(settings, topic, 0, end=len(shapes))
    assert [message.id for message in found] == [message_id for _, message_id in shapes]
    assert [message.record.value() for message in found] == [b"%d" % number for number in range(len(shapes))]


def test_what_is_behind_the_end_is_not_passed_over(settings, make_topic, publish):
    topic, publisher, sequencer = make_topic(), publish(), Sequencer()
    for number in range(10):
        publisher.publish_committed(topic, b"%d" % number)
    publisher.flush()
    for end in (4, 10):
        groups = read_committed(settings, topic, 0, sequencer=sequencer, end=end)
        found = [message.record.value() for group in groups for message in group]
        assert found == [b"%d" % number for number in (range(4) if end == 4 else range(4, 10))]
        assert sequencer.offset == end


def test_a_range_is_read_to_its_end_across_what_kafka_writes_itself(settings, make_topic, unique):
    """The marker that ends a Kafka transaction takes an offset, and is no message."""
    topic = make_topic()
    producer = Producer({**settings, "transactional.id": unique("id")})
    producer.init_transactions(30)
    for value in b"0123":
        producer.begin_transaction()
        producer.produce(topic, bytes([value]))
        producer.commit_transaction(30)
    for begin, end, found in ((0, 8, [0, 2, 4, 6]), (1, 8, [2, 4, 6]), (7, 8, []), (0, 4, [0, 2]), (0, 5, [0, 2, 4])):
        read = list(chain(*read_uncommitted(settings, topic, 0, begin=begin, end=end)))
        assert [message.offset for message in read] == [message.record.offset() for message in read] == found


def test_retention_that_overtook_the_checkpoint_is_no_silent_gap(settings, make_topic, publish, admin):
    topic, publisher = make_topic(), publish()
    for _ in range(10):
        publisher.publish_committed(topic, b"v")
    publisher.flush()
    admin.delete_records([TopicPartition(topic, 0, 5)])
    eventually(lambda: [each.offset for each in _from(settings, topic, 5)] == [5, 6, 7, 8, 9])
    for begin in (4, 11):
        with pytest.raises(CheckpointError, match=f"does not have offset {begin}"):
            _from(settings, topic, begin, end=20)


def _from(settings, topic, begin, end=10) -> list[Message]:
    return list(chain(*read_uncommitted(settings, topic, 0, begin=begin, end=end)))


def test_a_topic_that_is_not_there_is_named(settings, make_topic, unique):
    absent = unique("absent")
    with pytest.raises(TopicMissing, match=absent):
        next(read_uncommitted(settings, absent, 0, begin=0, end=1))
    with pytest.raises(TopicMissing, match="partition 7"):
        next(read_uncommitted(settings, make_topic(), 7, begin=0, end=1))


def test_a_publisher_without_kafka_says_so(publish):
    publisher = publish()
    publisher_of_nowhere = Publisher(
        {"bootstrap.servers": "127.0.0.1:1"}, producer_id=1, clock=Clock(time.time_ns), timeout_seconds=1
    )
    publisher_of_nowhere.publish_uncommitted("topic", b"v")
    with pytest.raises(KafkaUnavailable, match="not taken within 1 s"):
        publisher_of_nowhere.intents()
    publisher_of_nowhere.close()
    publisher.flush()


def test_whoever_takes_long_over_what_is_read_is_no_silence_of_kafka(settings, make_topic, publish, monkeypatch):
    monkeypatch.setattr(reader, "_BATCH_MESSAGES", 10)
    clock = SteppedClock()
    monkeypatch.setattr("harvest_lib.clock.boot_seconds", clock)
    topic, publisher = make_topic(), publish()
    for _ in range(40):
        publisher.publish_committed(topic, b"v")
    publisher.flush()
    found = 0
    for batch in read_uncommitted(settings, topic, 0, begin=0, end=40):
        clock.now += 2 * reader._SILENCE_SECONDS
        found += len(batch)
    assert found == 40
