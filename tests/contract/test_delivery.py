"""What every delivery promises, asked of the fake that the loop's tests use and of the real ones, with a real broker:
one lane and eight, with the barrier in mind and pipelined."""

import time
import uuid
from collections import Counter, deque
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from support.fakes import FakeDelivery
from support.outbox import Delivered, read_topic
from support.rows import row
from support.waiting import eventually

from harvest_lib.deadline import Deadline
from harvest_lib.delivery import AtLeastOnce, Lanes, LaneSettings, Pipelined, Reports, Topics, at_least_once


def always():
    return True


class FakeBroker:
    """A delivery into a list, and what arrived there."""

    def __init__(self):
        self._delivery = FakeDelivery()

    def delivery(self, *, held=False):
        self._delivery.hold = held
        return self._delivery

    def row(self, number, key="k"):
        return row(number, key)

    def refused(self, number):
        self._delivery.refuse[number] = "never"
        return row(number, "k")

    def arrived(self):
        return [
            Delivered(partition=0, offset=offset, key=sent[2], value=sent[3], headers=[], outbox_id=sent[0])
            for offset, (_, sent) in enumerate(self._delivery.log)
        ]


class RealBroker:
    """A topic of a real broker, and what arrived there."""

    def __init__(self, servers, topic, kind=AtLeastOnce, lanes=1):
        self._servers = servers
        self._kind = kind
        self._lanes = lanes
        self.topic = topic
        self._made = []

    def delivery(self, *, held=False, timeout_seconds=8.0, send_buffer=10, provider=Producer, **settings):
        """Make a delivery; with `held` what is sent stays in its queue."""
        lane_settings = LaneSettings(
            kafka={"bootstrap.servers": self._servers, "linger.ms": 7_000 if held else 2, **settings},
            delivery_timeout_seconds=timeout_seconds,
            send_buffer=send_buffer,
            producer_provider=provider,
        )
        topics = Topics({"bootstrap.servers": self._servers})
        lanes = [self._kind(lane_settings, topics) for _ in range(self._lanes)]
        made = lanes[0] if self._lanes == 1 else Lanes(lanes)
        self._made.append(made)
        return made

    def row(self, number, key="k", value="v"):
        return row(number, key, value, self.topic)

    def refused(self, number):
        """Make a row that cannot become a record: a header's value is missing."""
        return (number, self.topic, "k", "v", ["a", "b"], ["1"])

    def arrived(self):
        return read_topic(self._servers, self.topic)

    def close(self):
        for made in self._made:
            made.close()


@pytest.fixture
def kafka(bootstrap_servers, make_topic):
    broker = RealBroker(bootstrap_servers, make_topic())
    yield broker
    broker.close()


KINDS = {
    "one_lane": (AtLeastOnce, 1),
    "eight_lanes": (AtLeastOnce, 8),
    "pipelined": (Pipelined, 1),
    "eight_pipelined": (Pipelined, 8),
}


@pytest.fixture(params=["fake", *KINDS])
def broker(request):
    if request.param == "fake":
        yield FakeBroker()
        return
    servers, topic = request.getfixturevalue("bootstrap_servers"), request.getfixturevalue("make_topic")()
    kind, lanes = KINDS[request.param]
    real = RealBroker(servers, topic, kind, lanes)
    yield real
    real.close()


def begun(delivery):
    delivery.begin(uuid.uuid4())
    return delivery


def send(delivery, *rows, may_send=always):
    left = deque(rows)
    delivery.send(left, may_send)
    return list(left)


def poll(delivery, count, seconds=20):
    """Poll until `count` records are reported, and once more to see that no more are."""
    reports = Reports()

    def enough():
        polled = delivery.poll(0.05)
        reports.acknowledged.extend(polled.acknowledged)
        reports.failed.extend(polled.failed)
        return len(reports.acknowledged) + len(reports.failed) >= count

    eventually(enough, seconds, f"{count} reports")
    assert delivery.poll(0) == Reports()
    return reports


def deliver(delivery, *rows):
    """Do as the loop does until every row is acknowledged or refused; return what was refused."""
    left, refused, acknowledged = deque(rows), [], []

    def done():
        delivery.send(left, always)
        reports = delivery.poll(0.05)
        acknowledged.extend(reports.acknowledged)
        refused.extend(failure for failure in reports.failed if failure.refused)
        again = [failure.row for failure in reports.failed if not failure.refused]
        if again or reports.halted:
            left.extendleft(sorted(again, reverse=True))
            delivery.begin(uuid.uuid4())
        return len(acknowledged) + len(refused) == len(rows)

    eventually(done, 20, f"all {len(rows)} are acknowledged or refused")
    assert delivery.poll(0) == Reports()
    assert not set(ids(acknowledged)) & {failure.row[0] for failure in refused}
    return refused


def by_key(records):
    """Return the outbox ids of each key in the order of their partition."""
    found = {}
    for record in records:
        found.setdefault(record.key, []).append(record.outbox_id)
    return found


def ids(rows):
    return [r[0] for r in rows]


def failed_ids(reports):
    return [failure.row[0] for failure in reports.failed]


# -- the contract


def test_every_row_is_reported_once_and_what_is_acknowledged_is_there(broker):
    delivery = begun(broker.delivery())
    rows = [broker.row(number, f"k{number % 3}") for number in range(1, 101)]
    assert send(delivery, *rows) == []
    reports = poll(delivery, 100)
    assert sorted(reports.acknowledged) == sorted(rows), "the very rows that were sent"
    assert reports.failed == []
    expected = {f"k{n}": [r[0] for r in rows if r[2] == f"k{n}"] for n in range(3)}
    assert by_key(broker.arrived()) == expected, "each key in order, and none twice"


def test_sending_stops_when_it_may_not_go_on(broker):
    """What was not taken stays with the caller, in order."""
    delivery = begun(broker.delivery())
    rows = [broker.row(number) for number in range(1, 7)]
    asked = iter([True, True, False])
    assert send(delivery, *rows, may_send=lambda: next(asked)) == rows[2:]
    assert ids(poll(delivery, 2).acknowledged) == [1, 2]
    assert send(delivery, *rows[2:], may_send=lambda: False) == rows[2:]
    assert [record.outbox_id for record in broker.arrived()] == [1, 2]


def test_what_is_abandoned_never_leaves_and_is_reported_failed(broker):
    delivery = begun(broker.delivery(held=True))
    send(delivery, *[broker.row(number) for number in range(1, 51)])
    assert delivery.poll(0) == Reports(), "nothing has landed yet"
    reports = delivery.abandon()
    assert reports.acknowledged == []
    assert sorted(failed_ids(reports)) == list(range(1, 51))
    assert all(failure.reason for failure in reports.failed)
    assert delivery.poll(0) == delivery.abandon() == Reports(), "each is reported once"
    assert broker.arrived() == []


def test_a_delivery_can_begin_again_after_it_was_abandoned(broker):
    delivery = begun(broker.delivery())
    send(delivery, broker.row(1))
    poll(delivery, 1)
    delivery.abandon()
    delivery.begin(uuid.uuid4())
    send(delivery, broker.row(2))
    assert ids(poll(delivery, 1).acknowledged) == [2]
    assert [record.outbox_id for record in broker.arrived()] == [1, 2]


def test_a_row_that_is_refused_fails_alone(broker):
    """I8."""
    delivery = begun(broker.delivery())
    refused = deliver(delivery, broker.row(1), broker.refused(2), broker.row(3))
    assert [failure.row[0] for failure in refused] == [2]
    assert refused[0].reason
    assert [record.outbox_id for record in broker.arrived()] == [1, 3]


def test_nothing_is_sent_to_a_full_lane_that_is_not_sent_later(broker):
    """What was taken comes out again, in order."""
    delivery = begun(broker.delivery())
    rows = [broker.row(number, f"k{number % 5}") for number in range(1, 301)]
    assert deliver(delivery, *rows) == []
    expected = {f"k{n}": [r[0] for r in rows if r[2] == f"k{n}"] for n in range(5)}
    assert by_key(broker.arrived()) == expected


def test_close_sends_nothing_and_is_repeatable(broker):
    delivery = begun(broker.delivery(held=True))
    send(delivery, broker.row(1))
    delivery.close()
    delivery.close()
    assert broker.arrived() == []
    broker.delivery().close()  # one that never began


# -- the real one only


def test_the_header_says_whose_term_a_record_was_sent_in(kafka):
    delivery, terms = kafka.delivery(), [uuid.uuid4(), uuid.uuid4()]
    for number, term in enumerate(terms, 1):
        delivery.begin(term)
        send(delivery, kafka.row(number))
    poll(delivery, 2)
    assert [(record.outbox_id, record.leader_id) for record in kafka.arrived()] == list(enumerate(terms, 1))


def test_to_send_after_it_was_abandoned_takes_a_new_beginning(kafka):
    delivery = begun(kafka.delivery())
    delivery.abandon()
    with pytest.raises(RuntimeError, match="before begin"):
        send(delivery, kafka.row(1))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_full_queue_is_waited_out_without_loss_or_repetition(kafka, kind, bootstrap_servers):
    lane = RealBroker(bootstrap_servers, kafka.topic, *kind)
    delivery = begun(lane.delivery(**{"queue.buffering.max.messages": 10}))
    rows = [kafka.row(number) for number in range(1, 201)]
    assert deliver(delivery, *rows) == []
    assert [record.outbox_id for record in kafka.arrived()] == ids(rows)
    lane.close()


@pytest.mark.parametrize("send_buffer", [0, 5])
def test_the_send_buffer_bounds_what_waits_for_a_full_producer(kafka, send_buffer):
    """Records beyond it stay with the loop."""
    delivery = begun(kafka.delivery(held=True, send_buffer=send_buffer, **{"queue.buffering.max.messages": 10}))
    rows = [kafka.row(number) for number in range(1, 21)]
    assert ids(send(delivery, *rows)) == list(range(11 + send_buffer, 21))
    assert len(delivery.abandon().failed) == 10 + send_buffer
    assert kafka.arrived() == []


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
    assert ids(reports.acknowledged) == [1]
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
    left = deque(rows)
    acknowledged = []

    def landed():
        delivery.send(left, always)
        reports = delivery.poll(0.05)
        assert reports.failed == []
        acknowledged.extend(reports.acknowledged)
        return len(acknowledged) == 100

    eventually(landed, 20, "all are acknowledged")


def test_a_record_that_makes_its_batch_too_large_when_compressed_little_is_sent(kafka):
    """What counts is what arrives: 400,000 characters that compress to nothing are no reason to refuse."""
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
    eventually(lambda: topics.refused([rows[1]]) == {}, 20, "the topic is found once it is there")


def test_while_nobody_answers_no_record_is_refused():
    """A topic that cannot be asked about is not missing."""
    topics = Topics({"bootstrap.servers": "127.0.0.1:1"})
    assert topics.refused([row(1, "k")]) == {}
    began = time.monotonic()
    assert topics.refused([row(2, "k")]) == {}
    assert time.monotonic() - began < 1.0, "it is not asked again for each batch"


@pytest.mark.parametrize(
    "settings",
    [
        {"enable.idempotence": False, "acks": "1"},
        {"enable.idempotence": "false", "acks": 0, "allow.auto.create.topics": True, "message.timeout.ms": 0},
    ],
)
def test_settings_that_promises_rest_on_cannot_be_overridden(kafka, settings):
    used = {}
    delivery = begun(
        kafka.delivery(timeout_seconds=7.0, provider=lambda given: used.update(given) or Producer(given), **settings)
    )
    send(delivery, kafka.row(1))
    assert ids(poll(delivery, 1).acknowledged) == [1]
    rests_on = {name: used[name] for name in ("acks", "enable.idempotence", "allow.auto.create.topics")}
    assert rests_on == {"acks": "all", "enable.idempotence": True, "allow.auto.create.topics": False}
    assert used["message.timeout.ms"] == 7_000


def test_the_other_settings_are_the_users(kafka):
    """Seen in what librdkafka says of itself."""
    said = []
    delivery = begun(
        kafka.delivery(**{"client.id": "mine", "acks": "1", "statistics.interval.ms": 50, "stats_cb": said.append})
    )
    eventually(lambda: delivery.poll(0.05) == Reports() and said, 10, "statistics")
    assert '"client_id":"mine"' in said[-1].replace(" ", "")
    assert '"idemp_state"' in said[-1], "it is idempotent, which librdkafka refuses to be with less than acks=all"


# -- while the broker is away


@pytest.fixture
def frozen(stack):
    """Freeze the broker; it is thawed at the end, or earlier."""
    stack.kafka.suspend()
    try:
        yield stack.kafka
    finally:
        stack.kafka.resume()


@pytest.fixture
def connected(kafka):
    """A delivery that has one request on the wire at a time, each of one record, and has sent record 1."""
    delivery = begun(
        kafka.delivery(timeout_seconds=1.0, **{"max.in.flight": 1, "batch.num.messages": 1, "linger.ms": 0})
    )
    # A broker just started may take longer than that to take the first one.
    eventually(lambda: send(delivery, kafka.row(1)) or ids(poll(delivery, 1).acknowledged) == [1], 30, "connected")
    return delivery


def test_what_waits_longer_than_the_delivery_timeout_fails_and_never_leaves(connected, kafka, frozen):
    """A process that was frozen until another was elected must find its queue expired.

    Record 2 is on the wire before the broker notices that it is frozen: it may arrive, as every failed record may.
    """
    send(connected, *[kafka.row(number) for number in range(2, 52)])
    began = time.monotonic()
    reports = poll(connected, 50, seconds=8)
    assert time.monotonic() - began < 7.0
    assert sorted(failed_ids(reports)) == list(range(2, 52))
    frozen.resume()
    send(connected, kafka.row(99))
    last = poll(connected, 1)
    arrived = [record.outbox_id for record in kafka.arrived()]
    assert set(arrived) <= {1, 2, 99}
    assert last.failed or arrived[-1] == 99
    assert max(Counter(arrived).values()) == 1


def test_what_is_abandoned_while_the_broker_is_away_never_leaves(connected, kafka, frozen):
    send(connected, *[kafka.row(number) for number in range(2, 52)])
    began = time.monotonic()
    reports = connected.abandon()
    assert time.monotonic() - began < 5.0, "it asks nobody"
    assert sorted(failed_ids(reports)) == list(range(2, 52))
    frozen.resume()
    other = begun(kafka.delivery())
    send(other, kafka.row(99))
    poll(other, 1)
    assert {record.outbox_id for record in kafka.arrived()} - {2} == {1, 99}


def test_a_full_queue_does_not_hold_up_the_end_of_a_term(kafka, frozen):
    """While the broker is away nothing lands, so the queue stays full: sending returns, and the loop sees it."""
    delivery = begun(kafka.delivery(send_buffer=0, **{"queue.buffering.max.messages": 10}))
    began = time.monotonic()
    assert ids(send(delivery, *[kafka.row(number) for number in range(1, 21)])) == list(range(11, 21))
    assert time.monotonic() - began < 2.0, "it does not wait for room"
    assert len(delivery.abandon().failed) == 10


class Fatal:
    """A producer that librdkafka has given up on."""

    def produce(self, *_, **__):
        raise KafkaException(KafkaError(KafkaError._FATAL, "fenced", fatal=True))

    def purge(self, **_):
        self.purged = True

    def flush(self, _seconds):
        return 0

    def close(self):
        return True

    def poll(self, _seconds):
        return 0


def test_a_producer_with_a_fatal_error_is_replaced(kafka):
    """It never sends again: kept, it would fail every record of a leader that goes on leading."""
    delivery = begun(kafka.delivery())
    delivery._producer.close()
    delivery._producer = fatal = Fatal()
    send(delivery, kafka.row(1))
    assert failed_ids(delivery.poll(0)) == [1]
    delivery.begin(uuid.uuid4())
    assert fatal.purged
    send(delivery, kafka.row(1))
    assert ids(poll(delivery, 1).acknowledged) == [1]
    delivery.close()


@pytest.fixture
def strict(bootstrap_servers, make_topic):
    """A topic that refuses the late."""
    broker = RealBroker(bootstrap_servers, make_topic(**{"message.timestamp.before.max.ms": 2_000}))
    yield broker
    broker.close()


def test_what_was_let_through_before_a_freeze_and_leaves_after_it_is_refused_by_the_topic(strict, monkeypatch):
    """The clock jumps inside the check, as it does for a process that is frozen right there; the record then leaves."""
    delivery = begun(strict.delivery())
    now = [time.time() - 5.0]
    monkeypatch.setattr(at_least_once.time, "time", lambda: now[0])

    def may_send():
        now[0] += 5.0
        return True

    send(delivery, strict.row(1), may_send=may_send)
    reports = poll(delivery, 1)
    assert failed_ids(reports) == [1]
    assert "timestamp" in reports.failed[0].reason.lower()
    monkeypatch.undo()
    send(delivery, strict.row(2))
    assert ids(poll(delivery, 1).acknowledged) == [2]
    assert [record.outbox_id for record in strict.arrived()] == [2]


class Slow:
    """A producer whose records land when the test says so, or never."""

    def __init__(self, settings):
        self.settings, self.callbacks, self.landing = settings, [], False

    def produce(self, _topic, _value, _key, _partition, callback, *_):
        self.callbacks.append(callback)

    def poll(self, _seconds=0):
        while self.landing and self.callbacks:
            self.callbacks.pop(0)(None, None)
        return 0

    flush = poll

    def purge(self, **_):
        pass

    def close(self):
        return True


def test_pipelined_what_was_overdue_and_landed_after_all_is_said_to_have_halted():
    """Else the lane would take nothing more, and nobody would begin it again."""
    made = []
    settings = LaneSettings(
        kafka={}, delivery_timeout_seconds=0.01, producer_provider=lambda given: made.append(Slow(given)) or made[-1]
    )
    delivery = begun(Pipelined(settings, Topics({})))
    assert send(delivery, row(1, "k")) == []
    delivery._give_up = Deadline(5)  # as when it is overdue
    made[0].landing = True
    seen = [delivery.poll(0) for _ in range(3)]
    assert [ids(each.acknowledged) for each in seen] == [[1], [], []]
    assert [each.halted for each in seen].count(True) == 1
    assert ids(send(delivery, row(2, "k"))) == [2], "it takes nothing before it begins"
    delivery.begin(uuid.uuid4())
    assert send(delivery, row(2, "k")) == []
    delivery.close()


@pytest.mark.parametrize("kind", [AtLeastOnce, Pipelined])
def test_a_record_that_its_producer_never_reports_is_reported_failed(kind):
    delivery = begun(kind(LaneSettings(kafka={}, delivery_timeout_seconds=9, producer_provider=Slow), Topics({})))
    send(delivery, row(1, "k"))
    assert failed_ids(delivery.abandon()) == [1]
    assert delivery.outstanding == 0


def test_the_settings_of_a_lane_show_no_secret():
    """I10."""
    assert "hunter2" not in repr(LaneSettings(kafka={"sasl.password": "hunter2"}, delivery_timeout_seconds=9))


class Guarded:
    """An admin client of a cluster where some topics are not ours to see."""

    def __init__(self, codes):
        self._codes = codes

    def describe_topics(self, collection, **_):
        return {topic: self._answer(self._codes.get(topic)) for topic in collection.topic_names}

    def describe_configs(self, resources, **_):
        return {resource: self._answer(KafkaError.TOPIC_AUTHORIZATION_FAILED) for resource in resources}

    def _answer(self, code):
        answer = Future()
        answer.set_result(None) if code is None else answer.set_exception(KafkaException(KafkaError(code)))
        return answer


def test_a_topic_that_is_not_ours_to_see_is_not_missing_and_hides_no_other():
    """Nobody can tell whether it exists: the delivery finds out, and what it is told may pass."""
    topics = Topics({})
    topics._admin = Guarded(
        {"denied": KafkaError.TOPIC_AUTHORIZATION_FAILED, "missing": KafkaError.UNKNOWN_TOPIC_OR_PART}
    )
    rows = [row(number, "k", topic=topic) for number, topic in enumerate(["denied", "missing", "here"], 1)]
    assert topics.refused(rows) == {2: "the topic does not exist"}


def test_a_fatally_failed_producer_is_replaced_only_when_what_it_has_on_the_wire_has_landed():
    """Else the next one's records could be followed by these."""
    made = []
    settings = LaneSettings(
        kafka={}, delivery_timeout_seconds=9, producer_provider=lambda given: made.append(Slow(given)) or made[-1]
    )
    delivery = begun(AtLeastOnce(settings, Topics({})))
    send(delivery, row(1, "k"))
    delivery._dead, first = True, made[0]
    first.purge = lambda **_: first.callbacks.clear()  # nothing would come of it any more
    first.landing = True
    delivery.begin(uuid.uuid4())
    assert len(made) == 2
    assert ids(delivery.poll(0).acknowledged) == [1]


def test_lanes_that_are_abandoned_stop_sending_before_the_first_is_closed():
    said = []

    class Noted(Slow):
        def purge(self, **_):
            said.append(("purge", id(self)))

        def close(self):
            said.append(("close", id(self)))

    settings = LaneSettings(kafka={}, delivery_timeout_seconds=9, producer_provider=Noted)
    Lanes([AtLeastOnce(settings, Topics({})) for _ in range(3)]).abandon()
    first_close = [what for what, _ in said].index("close")
    assert len({lane for what, lane in said[:first_close] if what == "purge"}) == 3
