"""What an embedder brings is called for everything that it should see: clients, source and election of its own."""

from collections import Counter

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from support.counting import CountingSource
from support.native_outbox import NativeOutbox
from support.outbox import harvest_config, read_topic
from support.topics import configure_topic
from support.waiting import eventually
from support.watched import WatchedProducers

from harvest_lib.delivery import AtLeastOnce, BatchDeliverySettings, Topics
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.leadership import Solo
from harvest_lib.native import NativeSender
from harvest_lib.source import MarkSource

pytestmark = pytest.mark.gate

RECORDS = 40


@pytest.fixture
def none_natively(monkeypatch):
    """A record that is handed over below Python would not be seen."""

    def refuse(*_arguments, **_named):
        raise AssertionError("a record was handed over natively")

    monkeypatch.setattr(NativeSender, "send", refuse)


@pytest.fixture
def native(dsn, make_topic):
    made = NativeOutbox(dsn, make_topic(2))
    made.fill(RECORDS, keys=10)
    yield made
    made.close()


@pytest.fixture
def config(dsn, bootstrap_servers, group_id):
    def make(**settings):
        return harvest_config(dsn, bootstrap_servers, group_id, **settings)

    return make


@pytest.mark.usefixtures("none_natively")
@pytest.mark.parametrize("delivery", ["barrier", "pipelined", "transactional", "sequenced"])
def test_a_producer_of_the_users_sees_each_record_and_its_report(native, config, delivery):
    producers = WatchedProducers()
    harvest = Harvest(config(source="snapshot", delivery=delivery), kafka_producer_provider=producers)
    assert harvest.drain(60).records == RECORDS
    assert producers.produced == producers.reported
    assert producers.errors == []
    assert producers.of_outbox == RECORDS
    others = producers.produced.total() - RECORDS
    assert bool(others) is (delivery in {"transactional", "sequenced"}), "checkpoints, and acknowledgements"


@pytest.mark.usefixtures("none_natively")
def test_it_sees_the_report_of_a_record_that_is_refused(native, config, bootstrap_servers):
    configure_topic(AdminClient({"bootstrap.servers": bootstrap_servers}), native.topic, {"max.message.bytes": "2000"})
    native.connection.execute(
        "UPDATE outbox SET kafka_value = (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 180) g) "
        "WHERE id = 9"
    )
    producers = WatchedProducers()
    kafka = {"compression.type": "lz4"}  # so that only the broker can tell
    settings = config(source="snapshot", delivery="pipelined", parking="skip", producer_kafka_config=kafka)
    assert Harvest(settings, kafka_producer_provider=producers).drain(60).records == RECORDS - 1
    assert producers.produced == producers.reported
    assert "MSG_SIZE_TOO_LARGE" in {error.name() for error in producers.errors}


@pytest.mark.usefixtures("none_natively")
def test_it_sees_heartbeats_and_a_consumer_of_the_users_the_election_and_the_checkpoints(native, config, group_id):
    producers, asked = WatchedProducers(), Counter()

    class Watched(Consumer):
        """Notes what it is asked."""

        def subscribe(self, topics, **named):
            asked.update(topics)
            return super().subscribe(topics, **named)

        def get_watermark_offsets(self, partition, *arguments, **named):
            asked[partition.topic] += 1
            return super().get_watermark_offsets(partition, *arguments, **named)

    settings = config(source="snapshot", delivery="transactional", leadership="neli")
    harvest = Harvest(settings, kafka_producer_provider=producers, kafka_consumer_provider=Watched)
    assert harvest.drain(60).records == RECORDS
    assert asked.keys() == {f"{group_id}.neli", settings.checkpoint_topic}
    assert producers.produced[f"{group_id}.neli"] > 0
    assert producers.of_outbox == RECORDS


def test_every_mark_and_purge_goes_through_a_source_of_the_users(outbox, config, bootstrap_servers):
    outbox.fill(RECORDS, keys=10)
    purged = []

    class Purging(CountingSource):
        """Notes what is purged."""

        def fetch(self, limit, delivered=()):
            purged.extend(delivered)
            return super().fetch(limit, delivered)

    table = outbox.name
    source = Purging(MarkSource(outbox.dsn, table.identifier, table.parked.identifier))
    assert Harvest(config(), source=source).drain(60).records == RECORDS
    assert sorted(purged) == list(range(1, RECORDS + 1))
    assert source.statements["mark"] > 0
    assert len(read_topic(bootstrap_servers, outbox.topic)) == RECORDS


def test_an_election_and_a_delivery_of_the_users_are_asked_and_told(outbox, config, bootstrap_servers):
    outbox.fill(RECORDS, keys=10)
    calls, sent = Counter(), []

    class Elected(Solo):
        """Notes what it is asked."""

        def start(self):
            calls["start"] += 1
            super().start()

        def terms(self, *arguments, **named):
            calls["terms"] += 1
            return super().terms(*arguments, **named)

        def stop(self, timeout_seconds):
            calls["stop"] += 1
            super().stop(timeout_seconds)

    class Sent:
        """A delivery by another one, which notes what is sent."""

        def __init__(self, delivery):
            self.begin, self.commit, self._send = delivery.begin, delivery.commit, delivery.send
            self.settle, self.abandon = delivery.settle, delivery.abandon

        def send(self, rows, may_send):
            sent.extend(row[0] for row in rows)
            return self._send(rows, may_send)

    kafka = {"bootstrap.servers": bootstrap_servers}
    settings = BatchDeliverySettings(kafka=kafka, delivery_timeout_seconds=60, producer_provider=WatchedProducers())
    own = Sent(AtLeastOnce(settings, Topics(kafka)))
    with Harvest(config(), delivery=own, leadership=Elected()) as harvest:
        eventually(lambda: outbox.count() == 0, "all are purged")
        assert harvest.delivered_records == RECORDS
    assert sorted(sent) == list(range(1, RECORDS + 1))
    assert calls["start"] == calls["stop"] == 1
    assert calls["terms"] > 1
