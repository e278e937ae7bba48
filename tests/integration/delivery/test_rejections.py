"""Refusals of a broker: known before a record is sent, or found out by sending it alone."""

import pytest
from support.brokers import KINDS, RealBroker, always, begun, by_key, deliver, poll, send
from support.clock import Clock
from support.rows import row
from support.waiting import eventually

from harvest_lib.delivery import Topics
from harvest_lib.delivery import topics as topics_module
from harvest_lib.delivery.topic_facts import ask
from harvest_lib.record.rows import RowQueue

pytestmark = pytest.mark.gate


@pytest.fixture
def kafka(bootstrap_servers, make_topic):
    broker = RealBroker(bootstrap_servers, make_topic())
    yield broker
    broker.close()


REFUSED = {
    "unknown_topic": lambda kafka: row(2, "k", topic=f"{kafka.topic}_missing"),
    "illegal_topic": lambda kafka: row(2, "k", topic="not/legal"),
    "header_without_a_value": lambda kafka: kafka.refused(2),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_taken_fails_alone(kafka, refused):
    """I8: its neighbours, of the same key and partition even, are acknowledged."""
    # librdkafka would hope for the topic to appear for 30 s.
    delivery = begun(kafka.delivery(**{"topic.metadata.propagation.max.ms": 300}))
    bad = refused(kafka)
    assert send(delivery, kafka.row(1), bad) == []
    reports = poll(delivery, 2)
    assert reports.acknowledged == [1]
    assert [failure.row for failure in reports.failed] == [bad]
    assert reports.failed[0].reason
    assert deliver(delivery, kafka.row(3)) == []
    assert [record.outbox_id for record in kafka.arrived()] == [1, 3]


def test_a_record_larger_than_a_client_sends_is_refused_alone(kafka):
    delivery = begun(kafka.delivery())
    refused = deliver(delivery, kafka.row(1), kafka.row(2, value="v" * 1_100_000), kafka.row(3))
    assert [failure.row[0] for failure in refused] == [2]
    assert [record.outbox_id for record in kafka.arrived()] == [1, 3]


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def small(request, bootstrap_servers, make_topic):
    """A topic that takes batches of 2,000 bytes."""
    broker = RealBroker(bootstrap_servers, make_topic(**{"max.message.bytes": 2_000}), *request.param)
    yield broker
    broker.close()


@pytest.mark.quick
def test_of_a_batch_that_is_refused_only_the_record_to_blame_is(small):
    """Only the topic knows how large is too large, and a broker refuses all that travel together."""
    delivery = begun(small.delivery())
    rows = [small.row(number, f"k{number % 3}", value="v" * (5_000 if number == 7 else 100)) for number in range(1, 31)]
    refused = deliver(delivery, *rows)
    assert [failure.row[0] for failure in refused] == [7]
    assert "size" in refused[0].reason.lower()
    assert deliver(delivery, small.row(31, "k1")) == []
    assert sorted(record.outbox_id for record in small.arrived()) == [n for n in range(1, 32) if n != 7]
    assert all(numbers == sorted(numbers) for numbers in by_key(small.arrived()).values())


def test_batches_are_no_larger_than_the_topic_takes(small, bootstrap_servers):
    """Many small records together are too large as well: known beforehand, no batch is refused for it."""
    topics = Topics({"bootstrap.servers": bootstrap_servers})
    rows = [small.row(number, f"k{number % 3}", value="v" * 300) for number in range(1, 101)]
    assert topics.refused(rows) == {}
    assert topics.limit(small.topic) == topics.smallest_limit == 2_000
    delivery = begun(small.delivery())
    for lane in getattr(delivery, "_lanes", [delivery]):
        lane._topics = topics
    left = RowQueue(rows)
    acknowledged = []

    def landed():
        delivery.send(left, always)
        reports = delivery.poll(0.05)
        assert reports.failed == []
        acknowledged.extend(reports.acknowledged)
        return len(acknowledged) == 100

    eventually(landed, "all are acknowledged")


def test_a_record_that_makes_its_batch_too_large_when_compressed_little_is_sent(kafka):
    """Only the size on arrival counts: 400,000 characters that compress to nothing are no reason to refuse."""
    delivery = begun(kafka.delivery(**{"compression.type": "lz4"}))
    assert deliver(delivery, kafka.row(1), kafka.row(2, value="v" * 400_000), kafka.row(3)) == []
    assert [record.outbox_id for record in kafka.arrived()] == [1, 2, 3]


def test_topics_are_known_before_anything_is_sent_to_them(kafka, bootstrap_servers, make_topic):
    topics = Topics({"bootstrap.servers": bootstrap_servers})
    missing = f"{kafka.topic}_missing"
    rows = [
        kafka.row(1),
        row(2, "k", topic=missing),
        row(3, "k", topic="not/legal"),
        kafka.refused(4),
        (5, kafka.topic, "k", "v", [None], ["1"]),
        row(6, "", topic=kafka.topic),
    ]
    assert topics.refused(rows) == {
        2: "the topic does not exist",
        3: "the topic's name is not legal in Kafka",
        4: "2 header names, 1 header values",
        5: "a header without a name",
    }
    many = [kafka.row(1), *(row(n, "k", topic=f"{missing}{n}") for n in range(10, 40))]
    assert set(Topics({"bootstrap.servers": bootstrap_servers}).refused(many)) == set(range(10, 40))
    make_topic(name=missing)
    eventually(lambda: topics.refused([rows[1]]) == {}, "the topic is found once it is there")


def test_while_nobody_answers_no_record_is_refused(monkeypatch):
    """A topic that cannot be asked about is not missing."""
    clock, asked = Clock(), []
    monkeypatch.setattr(topics_module, "boot_seconds", clock)
    monkeypatch.setattr(topics_module, "ask", lambda *given: asked.append(given) or ask(*given))
    topics = Topics({"bootstrap.servers": "127.0.0.1:1"})
    assert topics.refused([row(1, "k")]) == {}
    assert topics.refused([row(2, "k")]) == {}
    assert len(asked) == 1, "it is not asked again for each batch"
    clock.now += topics_module._RECHECK_SECONDS
    assert topics.refused([row(3, "k")]) == {}
    assert len(asked) == 2
