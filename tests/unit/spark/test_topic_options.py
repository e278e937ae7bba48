"""The options of `format("harvested")`: refused before anything is asked of Kafka, and what is divided by a limit."""

import pytest

from harvest_lib.errors import CheckpointError, ConfigError, PositionLost
from harvest_lib.record.last_read import LastRead
from harvest_lib.sequencing.producer_state import ProducerState
from harvest_lib.spark.data_source.topic_offsets import Position, TopicOffset, parts_between, shares
from harvest_lib.spark.data_source.topic_options import TopicOptions

pytestmark = pytest.mark.quick

GIVEN = {"kafka.bootstrap.servers": "b:9092", "topics": "orders, shipments,orders"}


def test_options_are_read_as_spark_hands_them_over():
    given = {
        **GIVEN,
        "KAFKA.sasl.password": "canary",
        "maxrecordsperbatch": "7",
        "STARTINGTIME": "2026-11-21T08:00:00.5Z",
        "sequenced": "FALSE",
    }
    options = TopicOptions.parse(given, streaming=True)
    assert options.topics == ("orders", "shipments")
    assert options.kafka == {"bootstrap.servers": "b:9092", "sasl.password": "canary"}
    assert (options.max_records, options.starting, options.sequenced) == (7, 1_795_248_000_500, False)
    assert "canary" not in repr(options)
    assert TopicOptions.parse({**GIVEN, "endingTime": "12"}, streaming=False).ending_ms == 12


@pytest.mark.parametrize(
    ("change", "streaming", "says"),
    [
        ({"topics": ""}, True, "no topic was named"),
        ({"topics": "orders.*"}, True, r"(?s)'orders\.\*' cannot name.*patterns"),
        ({"kafka.bootstrap.servers": ""}, True, "(?s)no broker was named.*field `kafka.bootstrap.servers`"),
        ({"subscribe": "orders"}, True, "(?s)no option 'subscribe'.*write topics"),
        ({"topcis": "orders"}, True, "write topics"),
        ({"maxOffsetsPerTrigger": "7"}, True, "write maxRecordsPerBatch"),
        ({"maxRecordPerBatch": "7"}, True, "write maxRecordsPerBatch"),
        ({"bootstrap.servers": "b"}, True, r"write kafka\.bootstrap\.servers"),
        ({"sasl.mechanism": "PLAIN"}, True, r"write kafka\.sasl\.mechanism"),
        ({"nonsense": "x"}, True, "use topics, startingTime, startingOffsets"),
        ({"endingTime": "12"}, True, r"(?s)for spark\.read alone.*use topics"),
        ({"startingOffsets": "now"}, False, r"for spark\.readStream alone"),
        ({"startingOffsets": "earliest"}, True, "(?s)cannot start at 'earliest'.*write beginning"),
        ({"startingOffsets": "latest"}, True, "write now"),
        ({"startingOffsets": "12"}, True, "use beginning or now, or startingTime"),
        ({"startingOffsets": "now", "startingTime": "12"}, True, "two starts were named"),
        ({"startingTime": "2026-11-21T08:00:00"}, True, r"(?s)no time with a zone.*\+00:00"),
        ({"startingTime": "yesterday"}, True, "no time with a zone"),
        ({"maxRecordsPerBatch": "0"}, True, "no number from 1 to"),
        ({"sequenced": "no"}, True, "neither true nor false"),
        ({"kafka.group.id": "g"}, True, "(?s)makes this setting itself.*kafka.group.id"),
        ({"kafka.isolation.level": "read_uncommitted"}, True, "makes this setting itself"),
        ({"kafka.ssl.key.pem": "canary"}, True, "(?s)Spark would show this secret.*ssl.key.location"),
        ({"kafka.sasl.oauthbearer.config": "canary"}, True, "Spark would show this secret"),
        ({"kafka.sasl.oauthbearer.token.endpoint.url": "https://a:canary@b/"}, True, None),
        ({"kafka.http.proxy": "https://a:canary@b/"}, True, "Spark would show this secret"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_next_step(change, streaming, says):
    if says is None:
        TopicOptions.parse({**GIVEN, **change}, streaming=streaming)
        return
    with pytest.raises(ConfigError, match=says) as caught:
        TopicOptions.parse({**GIVEN, **change}, streaming=streaming)
    assert "canary" not in str(caught.value)


def test_an_offset_comes_back_from_json():
    state = ProducerState(producer=2**47, acknowledged=2**63, begin=3, newest=2**64 - 1, ack=5)
    position = Position(begin=1, offset=7, last=LastRead(6, 1_000, "ab"), producers=(state,))
    other = Position(begin=1, offset=9, unsearched=4)
    offset = TopicOffset(positions={("orders", 0): position, ("orders", 12): other}, ids={"orders": "i"})
    assert TopicOffset.of_json(offset.to_json()) == offset
    offset.require_same({"orders": "i", "new": "j"})
    with pytest.raises(PositionLost, match="'orders' was recreated"):
        offset.require_same({"orders": "other"})


def test_the_parts_of_a_micro_batch_are_between_its_offsets():
    def at(**offsets):
        positions = {("t", int(name[1:])): Position(begin=2, offset=each) for name, each in offsets.items()}
        return TopicOffset(positions=positions, ids={"t": "i"})

    found = parts_between(at(p0=5, p1=5), at(p0=5, p1=8, p2=4, p3=2))
    assert [(each.partition, each.begin.offset, each.end) for each in found] == [(1, 5, 8), (2, 2, 4)]
    with pytest.raises(CheckpointError, match="before its predecessor"):
        parts_between(at(p0=5), at(p0=4))
    assert at(p0=5, p1=5).is_read(at(p0=5))
    assert not at(p0=5).is_read(at(p0=6))
    assert not at(p0=5).is_read(at(p1=0))


@pytest.mark.parametrize(
    ("available", "limit", "wanted"),
    [
        ([3, 4], None, [3, 4]),
        ([3, 4], 7, [3, 4]),
        ([30, 10], 8, [6, 2]),
        ([1, 1, 1], 2, [1, 1, 0]),
        ([1_000, 1], 10, [10, 0]),
        ([0, 0], 5, [0, 0]),
    ],
)
def test_a_limit_is_divided_in_proportion(available, limit, wanted):
    given = {("t", number): each for number, each in enumerate(available)}
    assert list(shares(given, limit).values()) == wanted
