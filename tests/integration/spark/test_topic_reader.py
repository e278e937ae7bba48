"""The parts of `format("harvested")` without Spark: micro-batches of any size have what a consumer gets, in order."""

import json
import random
from itertools import chain

import pytest
from support.topic_sender import Sender

from harvest_lib.consume import Sequencer, read_committed
from harvest_lib.sequencing import message_id
from harvest_lib.sequencing.message_id import Flag, new_producer_id, pack
from harvest_lib.spark.data_source import topic_rows
from harvest_lib.spark.data_source.topic_ahead import TopicAhead
from harvest_lib.spark.data_source.topic_offsets import TopicOffset
from harvest_lib.spark.data_source.topic_options import TopicOptions

pytestmark = pytest.mark.full


@pytest.fixture
def options(bootstrap_servers):
    def make(topic, **more):
        given = {"kafka.bootstrap.servers": bootstrap_servers, "topics": topic, **more}
        return TopicOptions.parse(given, streaming=True)

    return make


def rows_between(options, ahead, start, end):
    batches = chain.from_iterable(topic_rows.read(options, part) for part in ahead.between(start, end))
    return [row for batch in batches for row in batch.to_pylist()]


def history(draw, messages):
    """Yield ids of messages of a few senders, whose clocks rise, fall and repeat, in long and short transactions."""
    senders, clocks = [new_producer_id() for _ in range(3)], [0, 0, 0]
    for _ in range(messages):
        kind, number = draw.random(), draw.randrange(3)
        if kind < 0.05:
            yield draw.choice([None, b"", b"x" * 16, message_id.ZERO])
            continue
        clocks[number] = max(1, clocks[number] + draw.choice([1, 1, 1, 1, 1, 0, -2]))
        flag = draw.choice([Flag.CONTINUE_TXN] * 6 + [Flag.ACK_TXN] * 2 + [Flag.OUTSIDE_TXN])
        yield pack(senders[number], clocks[number], flag)


def test_micro_batches_of_any_size_have_what_a_consumer_gets(make_topic, bootstrap_servers, options):
    seed = random.randrange(10**6)
    draw, topic = random.Random(seed), make_topic()
    sender = Sender(bootstrap_servers, topic)
    for number, each in enumerate(history(draw, 400)):
        sender.send(number, *([] if each is None else [(message_id.HEADER_NAME, each)]))
    sender.flush()
    settings = {"bootstrap.servers": bootstrap_servers}
    groups = read_committed(settings, topic, 0, sequencer=Sequencer(), end=400)
    wanted = [message.offset for message in chain.from_iterable(groups)]
    given, found, sizes = options(topic), [], []
    ahead = TopicAhead(given)
    at = TopicOffset.of_json({})
    while (end := ahead.after(at, draw.randint(1, 40))) is not at:
        end = TopicOffset.of_json(json.loads(json.dumps(end.to_json())))
        rows = rows_between(given, ahead, at, end)
        assert rows == rows_between(given, ahead, at, end), f"seed {seed}"
        found += [row["offset"] for row in rows]
        sizes.append(len(json.dumps(end.to_json())))
        at = end
    ahead.close()
    assert found == wanted, f"seed {seed}"
    assert max(sizes) < 600


def test_a_log_that_grew_twice_before_spark_took_it_has_no_gap(make_topic, bootstrap_servers, options):
    """Spark may ask for an end again before it plans the first micro-batch."""
    topic = make_topic()
    sender, given = Sender(bootstrap_servers, topic), options(topic)
    ahead, nothing = TopicAhead(given), TopicOffset.of_json({})
    at = nothing
    for record_id in range(3):
        sender.send(record_id)
        sender.flush()
        at = ahead.after(at, None)
    assert [row["outbox_id"] for row in rows_between(given, ahead, nothing, at)] == [0, 1, 2]
    ahead.close()


def test_batches_of_arrow_are_bounded_in_bytes(make_topic, bootstrap_servers, options):
    topic = make_topic()
    sender, given = Sender(bootstrap_servers, topic), options(topic)
    for record_id in range(20):
        sender.send(record_id, value=b"v" * 900_000)
    sender.flush()
    ahead, nothing = TopicAhead(given), TopicOffset.of_json({})
    (part,) = ahead.between(nothing, ahead.after(nothing, None))
    batches = list(topic_rows.read(given, part))
    assert sum(batch.num_rows for batch in batches) == 20
    assert max(batch.nbytes for batch in batches) < 6_000_000
    ahead.close()


def test_headers_of_the_row_that_have_our_names_come_too(make_topic, bootstrap_servers, options):
    topic = make_topic()
    sender, given = Sender(bootstrap_servers, topic), options(topic)
    own = [("harvest", b"mine"), ("harvest", None), ("message-id", b"order-7"), ("harvest", b"x" * 25)]
    sender.send(1, *own, key=None)
    sender.flush()
    ahead, nothing = TopicAhead(given), TopicOffset.of_json({})
    (row,) = rows_between(given, ahead, nothing, ahead.after(nothing, None))
    assert (row["outbox_id"], row["key"]) == (1, None)
    assert [(each["key"], each["value"]) for each in row["headers"]] == [*own, ("event", b"e")]
    ahead.close()
