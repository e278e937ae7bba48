"""Rows of every shape that an outbox can have, drawn by a seed; and what of a message is the same in every run."""

import json
from collections import defaultdict
from hashlib import blake2b

from confluent_kafka import Consumer, TopicPartition

from harvest_lib.record import header as record_header
from harvest_lib.record import misleading_header
from harvest_lib.sequencing.message_id import HEADER_NAME as ID_HEADER
from harvest_lib.sequencing.message_id import Flag, unpack

TEXTS = ["", "a", "key", "ключ", "鍵" * 20, "🔑", "line\nbreak", "'quoted' \"too\"", "harvest", "{}", "\x01\x7f\u2028"]
_NAMES = ["type", "type", "", "ключ", "n" * 300]
_OWN_NAMES = ["harvest", ID_HEADER]
_DIGEST_BYTES = 12
_CANNOT_BE_SENT = [
    (["a", "b"], ["1"]),
    (["a"], ["1", None]),
    ([None], ["1"]),
    (["a", None, "b"], ["1", "2", "3"]),
    ([["a", "b"]], [["1", "2"]]),
    (["a"], [["1"]]),
    ([], ["1"]),
    ([ID_HEADER], ["x" * 6 + "\x10\u0100" + "x" * 7]),
]


def _text(dice):
    if dice.random() < 0.2:
        return "".join(chr(dice.choice([*range(1, 0x2FF), 0x20AC, 0x1F511])) for _ in range(dice.choice([1, 9, 70])))
    return dice.choice(TEXTS) * dice.choice([1, 1, 1, 4])


def _value(dice, kind):
    if dice.random() < 0.1:
        return None
    if kind == "bytea":
        return dice.randbytes(dice.choice([0, 1, 30, 3_000]))
    if kind == "mapped":
        return json.dumps({"b": dice.random(), "a": [dice.choice(TEXTS), None]})
    return _text(dice) * dice.choice([1, 1, 1, 40])


def drawn(topics, count, kind, dice, *, parked=False, keys=0):
    """Yield topic, key, value, header names and header values of so many rows.

    With `parked` one in ten cannot be sent; then what is left of its page goes the way of Python. With `keys` each text
    makes so many keys, none of which is null or rare, and headers have no name of the harvester's own while all can be
    sent: the barrier picks rows of such a page without making them.
    """
    named = _NAMES if keys and not parked else _NAMES + _OWN_NAMES
    for _ in range(count):
        if parked and dice.random() < 0.1:
            names, contents = dice.choice(_CANNOT_BE_SENT)
        else:
            length = dice.choice([0, 1, 1, 2, 7])
            names = [dice.choice(named) for _ in range(length)]
            contents = [None if dice.random() < 0.1 else _text(dice) for _ in range(length)]
            if misleading_header(names, contents):
                names, contents = [], []
        key = f"{dice.choice(TEXTS)}{dice.randrange(keys)}" if keys else _text(dice)[:90]
        yield dice.choice(topics), key, _value(dice, kind), names, contents


def ends(servers, topic):
    """Return the offset that each partition ends at."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader"})
    try:
        numbers = consumer.list_topics(topic, 60).topics[topic].partitions
        return {each: consumer.get_watermark_offsets(TopicPartition(topic, each), 60)[1] for each in numbers}
    finally:
        consumer.close()


def messages(servers, topic, *, before=None):
    """Yield the committed messages of a topic as partition, offset, key, value, headers, each partition in order."""
    before = before or ends(servers, topic)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"})
    partitions = [TopicPartition(topic, number, 0) for number in before]
    consumer.assign(partitions)
    try:
        while any(max(0, each.offset) < before[each.partition] for each in consumer.position(partitions)):
            for message in consumer.consume(1_000, 0.1):
                assert not message.error()
                yield message.partition(), message.offset(), message.key(), message.value(), message.headers() or []
    finally:
        consumer.close()


def runs(servers, topic, cuts, *, has_ids, has_stamps, by_key=False):
    """Return by partition the messages of each run, the runs being those up to each of `cuts`: a digest of each.

    The sender and the time, which differ, are left out. Message ids have to be of one producer, of clocks
    that rise. There are no lists of messages, of which a million would not fit. `by_key` puts the messages of a key
    together, in their order: that of keys among each other may depend on the moments at which batches end.
    """
    found = {number: [[] for _ in cuts] for number in cuts[-1]}
    clocks, last = defaultdict(list), {}
    for number, offset, key, value, headers in messages(servers, topic):
        run = next(place for place, cut in enumerate(cuts) if offset < cut[number])
        if has_ids:
            assert headers[0][0] == ID_HEADER
            message_id = unpack(headers[0][1])
            if message_id.flag == Flag.ACK_TXN:
                continue
            clocks[number, run, message_id.producer].append(message_id.clock)
        record_id = None
        if has_stamps:
            assert headers[-1][0] == record_header.HEADER_NAME
            record_id = record_header.split(headers[-1][1])[1]
            assert record_id > last.get((number, run, key), -1), "in order of each key"
            last[number, run, key] = record_id
        own = headers[has_ids : len(headers) - has_stamps]
        digest = blake2b(repr((key, value, own, record_id)).encode(), digest_size=_DIGEST_BYTES).digest()
        found[number][run].append((key or b"") + digest if by_key else digest)
    assert len(clocks) == (sum(bool(each) for runs in found.values() for each in runs) if has_ids else 0)
    assert all(clocks_of == sorted(set(clocks_of)) for clocks_of in clocks.values())
    for some in (some for runs in found.values() for some in runs if by_key):
        some.sort(key=lambda each: each[:-_DIGEST_BYTES])
    return found
