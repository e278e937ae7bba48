"""Recovery logs that cannot be one, are somebody else's or have lost records are refused, never restored from."""

from functools import partial

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from support.recorded import SHARD, checkpoint
from support.topics import configure_topic
from support.waiting import eventually

from harvest_lib.consume.recovery_log import create_recovery_log
from harvest_lib.consume.sqlite_store import SqliteStore
from harvest_lib.errors import CheckpointError, TopicMissing, TopicTooSmall

pytestmark = pytest.mark.gate

COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture
def settings(bootstrap_servers):
    return {"bootstrap.servers": bootstrap_servers}


@pytest.fixture
def store(settings, tmp_path):
    made = []

    def make(log, **of):
        made.append(SqliteStore(tmp_path, settings, SHARD._replace(**of), log=log))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def recorded(store):
    """Record a table of many pages to a log."""

    def record(log):
        first = store(log)
        first.restore()
        first.begin().execute("CREATE TABLE t AS SELECT zeroblob(100000) AS a")
        assert first.commit(checkpoint(1))
        first.close()

    return record


@pytest.fixture
def set_policy(admin):
    return lambda topic, policy: configure_topic(admin, topic, {"cleanup.policy": policy})


def write(settings, topic, key, value):
    producer = Producer(settings)
    producer.produce(topic, value, key)
    assert producer.flush(60) == 0


def test_a_log_that_we_create_is_one_for_each_partition(settings, store, unique):
    log = unique("log")
    create_recovery_log(settings, log, partitions=2)
    create_recovery_log(settings, log, partitions=2)  # it is there
    for partition in (0, 1):
        shard = store(log, partition=partition)
        place = SHARD._replace(partition=partition)
        assert shard.restore() == checkpoint(shard=place)
        shard.begin().execute(f"CREATE TABLE t{partition} (a)")
        assert shard.commit(checkpoint(partition + 1, place))
    assert [store(log, partition=partition).restore().offset for partition in (0, 1)] == [1, 2]
    with pytest.raises(TopicTooSmall, match="2, of 3"):
        store(log, partition=2).restore()


def test_a_topic_that_is_missing_or_loses_records_by_itself_is_refused(store, make_topic, unique):
    with pytest.raises(TopicMissing, match=r"cleanup\.policy=compact"):
        store(unique("none")).restore()
    for policy in ("delete", "compact,delete"):
        with pytest.raises(CheckpointError, match=rf"is '{policy}'[^\0]*kafka-configs.sh"):
            store(make_topic(**{"cleanup.policy": policy})).restore()


def test_another_consumers_log_is_refused_and_stays_as_it_was(store, make_topic, recorded):
    log = make_topic(**COMPACT)
    recorded(log)
    with pytest.raises(CheckpointError, match=r"another shard[^\0]*counts"):
        store(log, consumer="totals").restore()
    assert store(log).restore() == checkpoint(1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("order-17", b"v"),
        ("0", b"v"),
        ("99999999999", b"v"),
        ("head", b"?"),
        ("head", b"[]"),
        ("head", b"{}"),
        ("head", None),
    ],
)
def test_a_topic_that_holds_anything_else_is_refused(settings, store, make_topic, key, value):
    log = make_topic(**COMPACT)
    write(settings, log, key, value)
    with pytest.raises(CheckpointError, match=rf"not of a recovery log[^\0]*offset 0 has the key b'{key}'"):
        store(log).restore()


@pytest.mark.parametrize("value", [None, bytes(4_096)])
def test_a_page_that_is_gone_or_another_is_noticed(settings, store, make_topic, recorded, value):
    log = make_topic(**COMPACT)
    recorded(log)
    write(settings, log, "7", value)
    with pytest.raises(CheckpointError, match=r"lacks records[^\0]*digest"):
        store(log).restore()


def removed(admin, until):
    try:
        (answer,) = admin.delete_records([until]).values()
        return answer.result(60)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.POLICY_VIOLATION:  # until the broker has heard of the new policy
            raise


@pytest.mark.parametrize("left", [0, 10])
def test_a_log_whose_beginning_was_removed_is_never_an_empty_or_torn_database(
    admin, store, make_topic, recorded, set_policy, left
):
    log = make_topic(**COMPACT)
    recorded(log)
    set_policy(log, "delete")
    place = TopicPartition(log, 0)
    end = admin.list_offsets({place: OffsetSpec.latest()})[place].result(60).offset
    eventually(partial(removed, admin, TopicPartition(log, 0, end - left)), "the broker has the policy, and removes")
    set_policy(log, "compact")
    with pytest.raises(CheckpointError, match=rf"lacks records[^\0]*offset {end - left}"):
        store(log).restore()


def test_a_log_that_nothing_was_ever_committed_to_is_a_new_one(settings, store, make_topic):
    log = make_topic(**COMPACT)
    producer = Producer({**settings, "transactional.id": log})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(log, b"page", "1")
    producer.flush(60)
    producer.abort_transaction(30)
    producer.close()
    assert store(log).restore() == checkpoint()
