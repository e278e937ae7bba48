"""Refusals of a broker that are known before a record is sent."""

import pytest
from support.brokers import RealBroker, begun, deliver
from support.clock import Clock
from support.rows import row
from support.waiting import eventually

from harvest_lib.delivery import BatchCommitted, Topics
from harvest_lib.delivery import topics as topics_module
from harvest_lib.delivery.topic_facts import ask

pytestmark = pytest.mark.gate


@pytest.mark.quick
def test_batches_are_no_larger_than_the_topic_takes(bootstrap_servers, make_topic):
    """Many small records together are too large as well: known beforehand, no batch is refused for it."""
    small = RealBroker(bootstrap_servers, make_topic(**{"max.message.bytes": 2_000}))
    topics = Topics({"bootstrap.servers": bootstrap_servers})
    rows = [small.row(number, f"k{number % 3}", value="v" * 300) for number in range(1, 101)]
    assert topics.refused(rows) == {}
    assert topics.limit(small.topic) == topics.smallest_limit == 2_000
    assert deliver(begun(small.delivery(topics=topics)), *rows) == BatchCommitted()
    small.close()


def test_a_record_that_makes_its_batch_too_large_when_compressed_little_is_sent(kafka):
    """Only the size on arrival counts: 400,000 characters that compress to nothing are no reason to refuse."""
    delivery = begun(kafka.delivery(**{"compression.type": "lz4"}))
    rows = kafka.row(1), kafka.row(2, value="v" * 400_000), kafka.row(3)
    assert deliver(delivery, *rows) == BatchCommitted()
    assert [record.outbox_id for record in kafka.arrived()] == [1, 2, 3]


@pytest.mark.full
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
