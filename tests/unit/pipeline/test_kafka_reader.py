"""The Kafka reader where the client says what no broker of a test can be brought to say."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from harvest_lib.errors import AdaptorError, KafkaAccessDenied
from harvest_lib.pipeline.adaptors.kafka import reader as kafka_reader_module
from harvest_lib.pipeline.adaptors.kafka.options import KafkaReading
from harvest_lib.pipeline.adaptors.kafka.reader import KafkaReader
from harvest_lib.pipeline.bounds import BATCH_BYTES

pytestmark = pytest.mark.quick


def record(code=None, timestamp=5, headers=None):
    """A message from the client: a record, or an error in place of one."""
    error = KafkaError(code, "bad batch") if code is not None else None
    parts = {"error": error, "topic": "t", "partition": 0, "offset": 7, "value": b"v", "key": None, "headers": headers}
    parts["timestamp"] = (0, timestamp)
    return SimpleNamespace(**{name: lambda part=part: part for name, part in parts.items()})


class Scripted:
    """A consumer of one partition."""

    def __init__(self, settings, records):
        self.settings, self._records, self._assigned = settings, records, []
        self.partitions, self.away = {0: None}, False

    def assignment(self):
        return self._assigned

    def assign(self, partitions):
        self._assigned = partitions

    def list_topics(self, topic, **_):
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=self.partitions)})

    def get_watermark_offsets(self, partition, **_):
        if self.away and partition.partition == max(self.partitions):
            raise KafkaException(KafkaError(self.away))
        return 7, 9

    def consume(self, *_):
        return [self._records.pop(0)] if self._records else []

    def close(self):
        pass


@pytest.fixture
def read(monkeypatch):
    def unknown(*_args, **_named):
        raise TimeoutError

    asked = SimpleNamespace(result=unknown)
    monkeypatch.setattr(AdminClient, "describe_topics", lambda *_, **__: {"t": asked})
    made = []

    def batches(*records):
        def provider(settings):
            made.append(Scripted(settings, list(records)))
            return made[-1]

        options = KafkaReading(kafka={"bootstrap.servers": "127.0.0.1:9"}, topics=["t"], content="record")
        found = KafkaReader(options, provider=provider).read({})
        next(found)
        return found

    batches.made = made
    return batches


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION])
def test_a_record_that_is_damaged_is_an_error_and_not_asked_for_again_and_again(read, code):
    with pytest.raises(AdaptorError, match="cannot be read") as error:
        next(read(record(code)))
    assert "partition 0, offset 7" in error.value.evidence


def test_checksums_are_looked_at(read):
    next(read())
    assert read.made[0].settings["check.crcs"] is True


def test_records_may_be_larger_than_what_is_fetched_ahead():
    kafka = {"bootstrap.servers": "127.0.0.1:1", "message.max.bytes": 64 << 20}
    KafkaReader(KafkaReading(kafka=kafka, topics=["t"]))._make().close()


def test_what_passes_by_itself_is_waited_for(read):
    batches = read(record(KafkaError._TRANSPORT), record())
    assert next(batches) == []
    assert next(batches)[0].data["value"] == "v"


def test_a_batch_is_bounded_by_the_bytes_of_headers_too(read):
    headers, count = [("large", b"x" * 100_000)], 200
    batch = next(read(*[record(headers=headers) for _ in range(count)]))
    assert len(batch) * 100_000 < BATCH_BYTES + 200_000 < count * 100_000


def test_a_record_without_a_time_has_that_of_the_beginning(read):
    assert {each.timestamp for each in next(read(record(timestamp=-1)))} == {0}


def test_partitions_that_are_added_while_a_broker_is_away_are_all_found_later(read, monkeypatch):
    monkeypatch.setattr(kafka_reader_module, "_LOOK_SECONDS", 0.0)
    batches = read()
    consumer = read.made[0]
    consumer.partitions, consumer.away = {0: None, 1: None, 2: None}, KafkaError._TRANSPORT
    assert [next(batches) for _ in range(4)] == [[], [], [], []]
    assert [each.partition for each in consumer.assignment()] == [0]
    consumer.away = False
    place = next(batch for batch in batches if batch)[0]
    assert place.data["offsets"] == {"0": 7, "1": 7, "2": 7}
    assert [each.partition for each in consumer.assignment()] == [0, 1, 2]


def test_who_is_refused_meanwhile_does_not_wait(read, monkeypatch):
    monkeypatch.setattr(kafka_reader_module, "_LOOK_SECONDS", 0.0)
    batches = read()
    read.made[0].partitions, read.made[0].away = {0: None, 1: None}, KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaAccessDenied):
        next(batch for batch in batches if batch)
