"""`format("harvested")`: a stream of what was delivered, with the same rows as `harvest_lib.consume`; or it fails."""

from datetime import UTC, datetime
from itertools import chain

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from support.outbox_source import HAS_TARGETS, FollowedTopics
from support.sequenced import ends_of
from support.subscribed import Subscribed
from support.topic_sender import Pending, Sender, in_transactions
from support.topics import recreate
from support.waiting import eventually

from harvest_lib.clock import unix_ms
from harvest_lib.consume import Sequencer, read_committed
from harvest_lib.errors import ConfigError, PositionLost, TopicMissing
from harvest_lib.spark import errors
from harvest_lib.spark.data_source import register
from harvest_lib.spark.data_source.harvested import harvested

pytestmark = [pytest.mark.full, pytest.mark.spark]


@pytest.fixture
def follow(spark, bootstrap_servers, tmp_path):
    register(spark)

    def start(*topics, **options):
        return FollowedTopics(spark, bootstrap_servers, topics, tmp_path / "checkpoint", **options)

    return start


@pytest.fixture
def topic(make_topic):
    return make_topic()


@pytest.fixture
def sender(topic, bootstrap_servers):
    return Sender(bootstrap_servers, topic)


def consumed(servers, topic):
    """Return the offsets of the committed messages of each partition, in the order in which a consumer gets them."""
    settings = {"bootstrap.servers": servers}
    return {
        partition: [
            message.offset
            for message in chain.from_iterable(
                read_committed(settings, topic, partition, sequencer=Sequencer(), end=end)
            )
        ]
        for partition, end in ends_of(servers, topic).items()
    }


def by_partition(rows, partitions):
    return {each: [row["offset"] for row in rows if row["partition"] == each] for each in range(partitions)}


def place(row):
    return row["partition"], row["offset"]


def fails(stream):
    """Run a stream that has to fail, and return the error of ours behind it."""
    with pytest.raises(Exception, match="harvest_lib") as caught:
        stream.run()
    return errors.of(caught.value)


@pytest.mark.parametrize("delivery", ["barrier", "transactional", pytest.param("sequenced", marks=pytest.mark.gate)])
def test_what_was_delivered_comes_and_a_restart_reads_nothing_again(
    spark, dsn, make_topic, bootstrap_servers, group_id, follow, delivery
):
    outbox = Subscribed(dsn, make_topic(partitions=3), bootstrap_servers, group_id)
    stream = follow(outbox.topic)
    for written in (40, 60):
        outbox.fill(written - len(stream.ids()))
        outbox.harvest(delivery=delivery).drain()
        stream.run()
        assert len(stream.ids()) == written
        count = len(stream.batches)
        stream.run()
        assert len(stream.batches) == count, "nothing is new"
    rows = stream.rows()
    assert by_partition(rows, 3) == consumed(bootstrap_servers, outbox.topic)
    whole = harvested(spark, [outbox.topic], kafka={"bootstrap.servers": bootstrap_servers})
    batch = spark.read.format("harvested").options(**stream.given).load()
    assert batch.schema.simpleString() == whole.schema.simpleString()
    wanted = sorted((row.asDict() for row in whole.collect()), key=place)
    assert sorted(rows, key=place) == wanted
    assert sorted((row.asDict() for row in batch.collect()), key=place) == wanted
    outbox.close()


def test_records_of_aborted_transactions_never_come_and_of_open_ones_later(
    make_topic, bootstrap_servers, unique, follow
):
    topic = make_topic()
    sender = in_transactions(bootstrap_servers, topic, unique("t"))
    stream = follow(topic)
    stream.run()
    assert stream.ids() == [1, 2, 5]
    sender.producer.commit_transaction(30)
    sender.producer.begin_transaction()
    sender.send(7)
    sender.flush()
    sender.producer.abort_transaction(30)
    stream.run()
    assert stream.ids() == [1, 2, 5, 6]
    count = len(stream.batches)
    stream.run()
    assert len(stream.batches) == count, "the ends of transactions were passed"


def test_pending_records_come_with_their_acknowledgement(sender, topic, bootstrap_servers, follow):
    """Of two senders, each waits for nobody; what was rolled back, and what is no harvester's, never comes."""
    stream = follow(topic)
    first, second = Pending(sender), Pending(sender)
    first.send(1, 2)
    second.send(11)
    sender.producer.produce(topic, value=b"foreign")
    sender.send(100)
    sender.flush()
    stream.run()
    assert stream.ids() == [100]
    kept = second.send(12)
    second.send(13)
    second.acknowledge(kept)  # rolls 13 back
    first.send(3)
    stream.run()
    assert stream.ids() == [100, 11, 12]
    first.acknowledge()
    first.acknowledge()
    second.send(14)
    stream.run()
    assert stream.ids() == [100, 11, 12, 1, 2, 3]
    second.acknowledge()
    stream.run()
    assert stream.ids() == [100, 11, 12, 1, 2, 3, 14]
    foreign = 3
    wanted = [offset for offset in consumed(bootstrap_servers, topic)[0] if offset != foreign]
    assert [row["offset"] for row in stream.rows()] == wanted


def test_a_micro_batch_that_is_repeated_has_the_same_rows(sender, topic, follow):
    """Its records were pending before it began, and more was sent since."""
    stream, pending = follow(topic), Pending(sender)
    pending.send(1, 2)
    stream.run()
    sender.send(3)
    pending.send(4)
    pending.acknowledge()
    stream.run()
    number = stream.forget_commit()
    pending.send(5)
    pending.acknowledge()
    stream.run()
    first, again = stream.batches[number]
    assert [row["outbox_id"] for row in first] == [3, 1, 2, 4]
    assert first == again
    stream.run()
    assert stream.ids() == [3, 1, 2, 4, 5]


def test_the_first_micro_batch_is_repeated_from_where_it_began(sender, topic, follow, admin):
    stream = follow(topic)
    sender.send(1)
    sender.flush()
    stream.fail_at = 0
    assert fails_before_commit(stream)
    sender.send(2)
    sender.flush()
    stream.fail_at = None
    stream.run()
    first, again = stream.batches[0]
    assert first == again
    stream.run()
    assert stream.ids() == [1, 2]


def fails_before_commit(stream):
    with pytest.raises(Exception, match="before its commit") as caught:
        stream.run()
    return caught


def test_a_stream_starts_now_or_at_a_time(sender, topic, follow, tmp_path):
    at = unix_ms() - 60_000
    for record_id in range(5):
        sender.send(record_id, timestamp=at + record_id)
    sender.flush()
    now = follow(topic, startingOffsets="now")
    now.run()
    timed = follow(topic, startingTime=str(at + 3))
    timed.checkpoint = tmp_path / "other"
    timed.run()
    assert timed.ids() == [3, 4]
    sender.send(9, timestamp=at + 9)
    sender.flush()
    now.run()
    timed.run()
    assert (now.ids(), timed.ids()) == ([9], [3, 4, 9])


def test_a_batch_ends_at_a_time(spark, sender, topic, follow):
    at = unix_ms() - 60_000
    for record_id in range(5):
        sender.send(record_id, timestamp=at + record_id)
    sender.flush()
    batch = spark.read.format("harvested").options(**follow(topic).given)

    def iso(milliseconds):
        return datetime.fromtimestamp(milliseconds / 1_000, UTC).isoformat(timespec="milliseconds")

    def ids(**options):
        return [row.outbox_id for row in batch.options(**options).load().collect()]

    assert ids() == [0, 1, 2, 3, 4]
    assert ids(endingTime=str(at + 3)) == [0, 1, 2]
    assert ids(endingTime=str(at + 3), startingTime=iso(at + 1)) == [1, 2]
    assert ids(endingTime=str(at), startingTime=str(at)) == []


def test_micro_batches_are_bounded(make_topic, bootstrap_servers, follow):
    topic = make_topic(partitions=2)
    sender = Sender(bootstrap_servers, topic)
    for record_id in range(40):
        sender.send(record_id, partition=record_id % 4 // 3)  # three of four records are in partition 0
    sender.flush()
    stream = follow(topic, maxRecordsPerBatch="8")
    if HAS_TARGETS:
        stream.run()
    else:
        stream.run_until(40)
    sizes = [len(attempts[-1]) for attempts in stream.batches.values()]
    assert (max(sizes), sum(sizes)) == (8, 40)
    assert len({row["partition"] for row in stream.batches[0][-1]}) == 2, "each partition has its share"
    assert sorted(stream.ids()) == list(range(40))


def test_partitions_that_are_added_are_read_from_their_beginning(sender, topic, bootstrap_servers, follow, admin):
    stream = follow(topic, startingOffsets="now")
    stream.run()
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
    eventually(lambda: len(ends_of(bootstrap_servers, topic)) == 2)
    sender.send(1, partition=1)
    sender.flush()
    stream.run()
    assert stream.ids() == [1]
    sender.send(2, partition=0)
    sender.flush()
    stream.run()
    assert stream.ids() == [1, 2]


@pytest.mark.parametrize("sequenced", ["true", "false"])
def test_messages_that_were_removed_before_they_were_read_are_an_error(sender, topic, follow, admin, sequenced):
    stream = follow(topic, sequenced=sequenced)
    for record_id in range(3):
        sender.send(record_id)
    sender.flush()
    stream.run()
    for record_id in range(3, 6):
        sender.send(record_id)
    sender.flush()
    admin.delete_records([TopicPartition(topic, 0, 5)])[TopicPartition(topic, 0)].result(60)
    error = fails(stream)
    assert isinstance(error, PositionLost)
    assert "new checkpoint" in error.next_step
    assert stream.ids() == [0, 1, 2], "no gap was passed"


def test_pending_records_that_were_removed_are_an_error(sender, topic, follow, admin):
    stream, pending = follow(topic), Pending(sender)
    pending.send(1, 2)
    stream.run()
    admin.delete_records([TopicPartition(topic, 0, 1)])[TopicPartition(topic, 0)].result(60)
    pending.acknowledge()
    assert isinstance(fails(stream), PositionLost)


def test_a_topic_that_was_recreated_is_an_error(sender, topic, follow, admin):
    stream = follow(topic)
    sender.send(1)
    sender.flush()
    stream.run()
    recreate(admin, topic)
    for record_id in (7, 8):
        sender.send(record_id)
    sender.flush()
    error = fails(stream)
    assert isinstance(error, PositionLost)
    assert "recreated" in error.cause
    assert stream.ids() == [1]


def test_a_stream_without_sequenced_messages_takes_them_for_an_error(sender, topic, follow):
    stream = follow(topic, sequenced="false")
    for record_id in range(100):
        sender.send(record_id)
    sender.flush()
    stream.run()
    assert stream.ids() == list(range(100))
    first, second = Pending(sender), Pending(sender)
    first.send(100)
    second.send(101)
    for record_id in range(102, 200):
        sender.send(record_id)  # the driver reads only the last records
    sender.flush()
    error = fails(stream)
    assert isinstance(error, ConfigError)
    assert "has sequenced messages" in error.cause
    stream.options = {}
    stream.run()
    assert stream.ids() == [*range(100), *range(102, 200)]
    first.acknowledge()
    stream.run()
    second.acknowledge()
    stream.run()
    assert stream.ids() == [*range(100), *range(102, 200), 100, 101]


def test_copies_are_left_out_within_a_watermark(sender, topic, follow):
    stream = follow(topic)
    read = stream.frame
    stream.frame = lambda: (
        read().withWatermark("timestamp", "1 hour").dropDuplicatesWithinWatermark(["topic", "outbox_id"])
    )
    for record_ids in ((1, 2, 2), (2, 3, 1)):
        for record_id in record_ids:
            sender.send(record_id)
        sender.flush()
        stream.run()
    assert sorted(stream.ids()) == [1, 2, 3]


def test_errors_are_ours_and_secrets_are_hidden(spark, follow, capfd):
    stream = follow("nowhere")
    assert isinstance(fails(stream), TopicMissing)
    stream.options = {"kafka.sasl.password": "canary", "kafka.security.protocol": "nonsense"}
    frame = stream.frame()
    frame.explain(extended=True)
    error = fails(stream)
    assert isinstance(error, ConfigError)
    assert "security.protocol" in str(error)
    assert "canary" not in str(error) + "".join(capfd.readouterr())
    stream.options = {"subscribe": "orders"}
    assert "write topics" in fails(stream).next_step


def test_a_running_stream_goes_on(sender, topic, follow):
    stream = follow(topic)
    query = stream.start()
    try:
        for record_id in range(5):
            sender.send(record_id)
            sender.flush()
            eventually(lambda: len(stream.ids()) > record_id or query.exception())  # noqa: B023
    finally:
        query.stop()
    assert query.exception() is None
    assert stream.ids() == list(range(5))
