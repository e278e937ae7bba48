"""The topic's writer of a pipeline, by either implementation: the same records, the same errors, and nothing of a batch
that failed afterwards."""

import json

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.handing_over import run_python
from support.pipelines import message
from support.refusing import RefusingProxy
from support.waiting import eventually

from harvest_lib.errors import KafkaUnavailable, MessageRefused, TopicMissing
from harvest_lib.local_stack.kafka import KafkaCluster
from harvest_lib.native import NativeSender, implementation, library, rows_of
from harvest_lib.pipeline.adaptors import writing
from harvest_lib.pipeline.adaptors.kafka import writer as writer_module
from harvest_lib.pipeline.adaptors.outbox import messages_of
from harvest_lib.pipeline.encoded_messages import encoded
from harvest_lib.pipeline.logged_messages import MessageCache
from harvest_lib.pipeline.routing import Routing
from infra.chaos.link import Links

pytestmark = pytest.mark.full

TIMESTAMP = 1_356_999_300_000
FIRST = 5
"""The offset of a bulk's first message."""
_NO_LIMIT = str((1 << 63) - 1)
ROWS = """
SELECT id::bigint, 't'::text, (id % 7)::text, repeat('v', 20 + id % 50), ARRAY['a', 'ü'], ARRAY['b', NULL]
FROM generate_series(1, {count}) AS id
"""


def logged(*batches):
    """Messages as a pipeline's writer gets them of its log."""
    cache = MessageCache(FIRST)
    for batch in batches:
        cache.add(cache.end, batch)
    return Routing().as_it_is(cache.run(FIRST, cache.end, 1 << 20))


def bulk(*texts, timestamp=TIMESTAMP):
    """One message of each text."""
    return logged(encoded([message("t", n, text=text)._replace(timestamp=timestamp) for n, text in enumerate(texts)]))


@pytest.fixture
def outbox_bulk(dsn):
    """Return what makes a bulk of an outbox's records; it has NOOPs among them."""
    with psycopg.connect(dsn) as connection:

        def made(count, batches=2):
            statement = ROWS.format(count=count)
            return logged(
                *[
                    messages_of(
                        rows_of(connection.cursor(binary=True).execute(statement)), TIMESTAMP, "outbox/s", {"number": 1}
                    )
                    for _ in range(batches)
                ]
            )

        yield made


@pytest.fixture
def produced(monkeypatch):
    """Count the records that are handed over natively."""
    counted, produce = [], NativeSender.produce

    def counting(self, records, begin):
        went, code = produce(self, records, begin)
        counted.append(went)
        return went, code

    monkeypatch.setattr(NativeSender, "produce", counting)
    return counted


@pytest.fixture
def make(bootstrap_servers, impl):
    made = []

    def writer(topic, kafka=None, **options):
        side = writing("kafka")
        kafka = {"bootstrap.servers": bootstrap_servers, **(kafka or {})}
        made.append(side.make(side.options(kafka=kafka, topic=topic, **options)))
        return made[-1]

    yield writer
    for each in made:
        each.close()


def create(servers, topic):
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)


def read(servers, topic):
    """Partition, key, value and time of each record, partition by partition."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"})
    numbers = consumer.list_topics(topic, 60).topics[topic].partitions
    ends = {each: consumer.get_watermark_offsets(TopicPartition(topic, each), 60)[1] for each in numbers}
    consumer.assign([TopicPartition(topic, each, 0) for each in numbers])
    found = []

    def all_there():
        found.extend(message for message in consumer.consume(1_000, 0.1) if not message.error())
        return len(found) >= sum(ends.values())

    try:
        eventually(all_there)
    finally:
        consumer.close()
    found.sort(key=lambda each: (each.partition(), each.offset()))
    return [(each.partition(), each.key(), each.value(), each.timestamp()) for each in found]


def texts(servers, topic):
    return [json.loads(value)["data"]["text"] for _, _, value, _ in read(servers, topic)]


@pytest.mark.parametrize(
    "options",
    [
        {"key": {"t": ["key"]}},
        {"key": {"t": ["id"]}},
        {"key": {"t": ["id", "key"]}},
        {},
    ],
    ids=str,
)
@pytest.mark.skipif(implementation().library is None, reason="there is no native library here")
def test_both_write_the_same(bootstrap_servers, make_topic, outbox_bulk, use, produced, options):
    side, found = writing("kafka"), []
    for name in ("native", "python"):
        topic = make_topic(partitions=3)
        use(name)
        messages = outbox_bulk(2_000)
        writer = side.make(side.options(kafka={"bootstrap.servers": bootstrap_servers}, topic=topic, **options))
        writer.write(messages)
        writer.close()
        found.append(read(bootstrap_servers, topic))
        assert len(found[-1]) == len(messages) == 4_000
    assert found[0] == found[1]
    assert sum(produced) == 4_000


def test_of_a_batch_that_the_topic_is_too_small_for_no_message_is_blamed(make, make_topic, bootstrap_servers, produced):
    topic = make_topic(**{"max.message.bytes": 2_000})
    writer, refused = make(topic), bulk("first", "second", "x" * 3_000, "after")
    with pytest.raises(MessageRefused, match=f"one of 4 messages, from {FIRST} to {FIRST + 3}") as of_several:
        writer.write(refused)
    assert topic in of_several.value.evidence
    assert "acknowledge none" in of_several.value.next_step
    assert "pipeline ack" not in of_several.value.next_step
    writer.write(refused[:1])
    writer.write(refused[1:2])
    with pytest.raises(MessageRefused, match=f"take message {FIRST + 2}\n") as of_one:
        writer.write(refused[2:3])
    assert "pipeline ack" in of_one.value.next_step
    assert f"show {FIRST + 2}`" in of_one.value.next_step
    writer.write(bulk("fits"))
    assert texts(bootstrap_servers, topic) == ["first", "second", "fits"]


def test_the_topic_that_refuses_is_named_where_two_get_the_same(make, make_topic):
    topics = [make_topic(), make_topic(**{"max.message.bytes": 2_000}), make_topic()]
    writer = make("{namespace}", key={topic: ["n"] for topic in topics}, content="data")
    with pytest.raises(MessageRefused, match=f"take message {FIRST + 1}\n") as refused:
        writer.write(logged(encoded([message(topic, 0, text="x" * 3_000) for topic in topics])))
    assert topics[1] in refused.value.evidence


class _TellsLate(Producer):
    """One that says first that it is of no use any more, and then why."""

    has_said = False

    def flush(self, timeout):
        if not self.has_said:
            self.has_said = True
            raise KafkaException(KafkaError(KafkaError._FATAL, "no more is sent", fatal=True))
        return super().flush(timeout)


def test_that_a_message_is_refused_is_told_whatever_is_heard_first(bootstrap_servers, make_topic):
    topic, side = make_topic(**{"max.message.bytes": 2_000}), writing("kafka")
    options = side.options(kafka={"bootstrap.servers": bootstrap_servers}, topic=topic)
    writer = writer_module.KafkaWriter(options, provider=_TellsLate)
    with pytest.raises(MessageRefused, match="one of 2 messages"):
        writer.write(bulk("first", "x" * 3_000))
    writer.close()


def test_the_one_that_the_client_does_not_take_is_named(make, make_topic, bootstrap_servers):
    topic = make_topic()
    writer = make(topic)
    with pytest.raises(MessageRefused, match=f"message {FIRST + 1}"):
        writer.write(bulk("first", "x" * 3_000_000, "after"))
    writer.write(bulk("fits"))
    found = texts(bootstrap_servers, topic)
    assert found[-1] == "fits"
    assert "after" not in found


def test_a_time_that_the_topic_does_not_take_is_refused(make, make_topic):
    topic = make_topic(**{"message.timestamp.after.max.ms": 3_600_000})
    with pytest.raises(MessageRefused, match=f"{FIRST}"):
        make(topic).write(bulk("late", timestamp=4_102_444_800_000))


def timed(*timestamps):
    """One message of each time."""
    return logged(encoded([message("t", n)._replace(timestamp=each) for n, each in enumerate(timestamps)]))


def test_the_latest_time_that_kafka_has_room_for_is_written(make, make_topic, bootstrap_servers):
    topic, latest = make_topic(**{"message.timestamp.after.max.ms": _NO_LIMIT}), (1 << 63) - 1
    make(topic).write(timed(TIMESTAMP, latest))
    assert [timestamp for _, _, _, (_, timestamp) in read(bootstrap_servers, topic)] == [TIMESTAMP, latest]


@pytest.mark.parametrize("timestamp", [1 << 63, (1 << 64) - 1])
def test_a_time_that_kafka_has_no_room_for_is_refused_before_anything_is_sent(
    make, make_topic, bootstrap_servers, timestamp
):
    topic = make_topic(**{"message.timestamp.after.max.ms": _NO_LIMIT})
    with pytest.raises(MessageRefused, match=rf"message {FIRST + 1} is of a time (.*\n)*.*timestamp {timestamp}"):
        make(topic).write(timed(TIMESTAMP, timestamp, TIMESTAMP))
    assert not read(bootstrap_servers, topic)


def test_a_queue_that_is_full_is_waited_for(make, make_topic, bootstrap_servers, produced, impl):
    topic = make_topic()
    writer = make(topic, {"queue.buffering.max.messages": 10})
    writer.write(bulk(*map(str, range(500))))
    assert texts(bootstrap_servers, topic) == list(map(str, range(500)))
    assert sum(produced) == (500 if impl == "native" else 0)


def has_written(writer, text):
    """Write a message; return True if that was in time."""
    try:
        writer.write(bulk(text))
    except KafkaUnavailable:
        return False
    return True


def test_a_topic_that_was_deleted_is_told(make, make_topic, bootstrap_servers):
    topic = make_topic()
    soon = {"topic.metadata.refresh.interval.ms": 200, "topic.metadata.propagation.max.ms": 500}
    writer = make(topic, soon)
    writer.write(bulk("there"))
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.delete_topics([topic])[topic].result(60)
    with pytest.raises(TopicMissing, match=topic):
        # Requests on the wire when the client hears of it may be given up first.
        eventually(lambda: has_written(writer, "gone") and False, "the client has heard of it")
    create(bootstrap_servers, topic)
    eventually(lambda: has_written(writer, "again"))
    assert texts(bootstrap_servers, topic)[-1] == "again"


def test_a_namespace_of_a_topic_that_is_not_there_is_told_before_anything_is_sent(make, unique):
    with pytest.raises(TopicMissing):
        make(unique("missing")).write(bulk("x"))


@pytest.fixture(scope="module")
def far(parts, tmp_path_factory):
    """A broker behind a link, and the link."""
    with Links() as links:
        link = links.add()
        cluster = KafkaCluster(tmp_path_factory.mktemp("kafka"), parts=parts, detours={"detour": [link.port]})
        try:
            cluster.start()
            link.forward_to("127.0.0.1", cluster.ports["detour-1"])
            yield cluster, link
        finally:
            cluster.kill()


def test_nothing_of_a_batch_that_failed_is_sent_afterwards(make, far, unique):
    cluster, link = far
    topic = unique("away")
    create(cluster.bootstrap_servers, topic)
    way = {"bootstrap.servers": f"127.0.0.1:{link.port}"}
    writer = make(topic, way, delivery_timeout="2s")
    eventually(lambda: has_written(writer, "before"))
    link.cut()
    try:
        with pytest.raises(KafkaUnavailable, match="did not take a batch in time"):
            writer.write(bulk(*["lost"] * 500))
    finally:
        link.heal()
    eventually(lambda: has_written(writer, "after"))
    assert list(dict.fromkeys(texts(cluster.bootstrap_servers, topic))) == ["before", "after"]


_ENDS = """
import os, sys, threading, time
from harvest_lib.pipeline.adaptors import writing
from harvest_lib.pipeline.encoded_messages import encoded
from harvest_lib.pipeline.logged_messages import MessageCache
from harvest_lib.pipeline.message import Op, PipelineMessage

side, cache = writing("kafka"), MessageCache()
cache.add(0, encoded([PipelineMessage(Op.INSERT, 1, "t", {"id": number}) for number in range(2_000)]))
messages = cache.run(0, cache.end, cache.end).selected(lambda head: True)
kafka = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "queue.buffering.max.messages": int(sys.argv[2])}
writer = side.make(side.options(kafka=kafka, topic="t"))
writer._topics = {"t": "t"}
threading.Thread(target=writer.write, args=(messages,), daemon=True).start()
while writer._producer is None or len(writer._producer) < int(sys.argv[2]) // 2:
    time.sleep(0.01)
print("natively" if writer._sender else "in python", flush=True)
if sys.argv[1] == "uncaught":
    raise RuntimeError("of the application")
if sys.argv[1] == "fork":
    child = os.fork()
    if not child:
        os._exit(3)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.exit(3)
"""


@pytest.mark.parametrize("most", ["100", "4000"], ids=["it waits for room", "it waits for answers"])
@pytest.mark.parametrize(("way", "code"), [("exit", 3), ("uncaught", 1), ("fork", 3)])
def test_a_process_that_ends_while_it_writes_ends_in_order(impl, way, code, most):
    done = run_python(_ENDS, way, most, seconds=60, **{library.VARIABLE: impl})
    assert done.returncode == code, done.stderr[-3_000:]
    assert "Fatal" not in done.stderr
    assert done.stdout.strip() == ("natively" if impl == "native" else "in python")


def test_nothing_is_taken_for_written_that_has_no_offset(make, parts, tmp_path, unique, monkeypatch, impl):
    """With several requests on the wire, as a writer never has them: inferred failures are heard of nevertheless."""
    with RefusingProxy() as proxy:
        cluster = KafkaCluster(tmp_path / "kafka", parts=parts, detours={"detour": [proxy.port]})
        try:
            cluster.start()
            proxy.forward_to("127.0.0.1", cluster.ports["detour-1"])
            topic = unique("inferred")
            create(cluster.bootstrap_servers, topic)
            settings = writer_module.client_settings
            monkeypatch.setattr(
                writer_module,
                "client_settings",
                lambda *given, **own: settings(*given, **{**own, writer_module.IN_FLIGHT: 5}),
            )
            writer = make(topic, {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "batch.num.messages": 3})
            proxy.refuse_next(patience_seconds=60)
            with pytest.raises(KafkaUnavailable, match="no broker has confirmed"):
                writer.write(bulk(*map(str, range(120))))
            assert proxy.overtaken == 1
            writer.close()
        finally:
            cluster.kill()


def test_a_wrapped_client_is_pythons(bootstrap_servers, make_topic, produced):
    topic, side = make_topic(), writing("kafka")
    options = side.options(kafka={"bootstrap.servers": bootstrap_servers}, topic=topic)

    def wrapping(settings):
        return Producer(settings)

    writer = writer_module.KafkaWriter(options, provider=wrapping)
    writer.write(bulk("x"))
    writer.close()
    assert texts(bootstrap_servers, topic) == ["x"]
    assert not produced
