"""Limits that a user sets hold, by counts: records in flight, and rows of one statement."""

from collections import defaultdict

import pytest
from confluent_kafka.admin import AdminClient
from support.native_outbox import NativeOutbox
from support.outbox import Outbox, harvest_config, read_topic
from support.topics import configure_topic
from support.watched import WatchedProducers

from harvest_lib.delivery.producer import BatchProducer
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.native import implementation
from harvest_lib.source import MarkSource, SnapshotSource, TransactionIdSource

pytestmark = pytest.mark.gate(cases=3)

RECORDS, LIMIT = 60, 7
DELIVERIES = ("barrier", "pipelined", "transactional", "sequenced")
SOURCES = ("mark", "snapshot", "mark", "transaction_id")
SOME = list(zip(SOURCES, DELIVERIES, strict=True))
WAYS = [("mark", each) for each in DELIVERIES] + [("snapshot", each) for each in DELIVERIES]


@pytest.fixture
def filled(dsn, make_topic):
    """Make an outbox that a source reads, with records of as many keys; the topic has two partitions."""
    made = []

    def fill(source, records=RECORDS):
        made.append((Outbox if source == "mark" else NativeOutbox)(dsn, make_topic(2)))
        made[0].fill(records, keys=records)
        return made[0]

    yield fill
    for each in made:
        each.close()


@pytest.fixture
def config(dsn, bootstrap_servers, group_id):
    def make(source, delivery, **settings):
        return harvest_config(
            dsn, bootstrap_servers, group_id, leadership="solo", source=source, delivery=delivery, **settings
        )

    return make


@pytest.fixture
def outstanding(monkeypatch):
    """Note how many records were handed over since the last wait for all of them, whenever a batch is waited for.

    librdkafka's own number has events of other kinds too, such as an error that the broker just told.
    """
    found, handed = [], defaultdict(int)
    hand_over, flush = BatchProducer.hand_over, BatchProducer.flush

    def counting(self, rows, may_send):
        handed[id(self)] += len(rows)
        return hand_over(self, rows, may_send)

    def noting(self, *arguments):
        found.append(handed.pop(id(self), 0))
        return flush(self, *arguments)

    monkeypatch.setattr(BatchProducer, "hand_over", counting)
    monkeypatch.setattr(BatchProducer, "flush", noting)
    return found


@pytest.mark.parametrize(("source", "delivery"), WAYS, ids=["-".join(way) for way in WAYS])
def test_a_limit_of_records_in_flight_holds_where_records_are_handed_over_natively(
    filled, config, outstanding, bootstrap_servers, source, delivery
):
    if implementation().library is None:
        pytest.skip(f"there is no native library here: {implementation().reason}")
    outbox = filled(source)
    limited = config(source, delivery, limits={"max_in_flight_records": LIMIT})
    assert Harvest(limited).drain(60).records == RECORDS
    assert max(outstanding) == LIMIT
    isolation = "read_committed" if delivery in {"transactional", "sequenced"} else "read_uncommitted"
    assert len(read_topic(bootstrap_servers, outbox.topic, isolation=isolation)) == RECORDS


@pytest.mark.parametrize(("source", "delivery"), SOME, ids=["-".join(way) for way in SOME])
def test_a_limit_of_records_in_flight_holds_by_the_reports_of_a_producer_of_the_users(filled, config, source, delivery):
    """Checkpoints and acknowledgements count: none is produced while records of a batch are."""
    outbox, producers = filled(source), WatchedProducers()
    limited = config(source, delivery, limits={"max_in_flight_records": LIMIT})
    assert Harvest(limited, kafka_producer_provider=producers).drain(60).records == RECORDS
    assert producers.most == LIMIT
    assert producers.outstanding == 0
    assert producers.produced == producers.reported
    assert producers.produced[outbox.topic] >= RECORDS
    assert producers.errors == []


@pytest.mark.parametrize("delivery", ["barrier", "pipelined"])
def test_without_the_limit_batches_have_their_own_bounds(filled, config, delivery):
    producers = WatchedProducers()
    filled("mark", 1_200)
    assert Harvest(config("mark", delivery), kafka_producer_provider=producers).drain(60).records == 1_200
    assert 500 <= producers.most <= 1_000


def test_a_limit_of_one_record_delivers_all(filled, config, outstanding):
    filled("mark", 5)
    assert Harvest(config("mark", "barrier", limits={"max_in_flight_records": 1})).drain(60).records == 5
    assert max(outstanding) == 1


def test_shards_that_one_process_leads_share_the_limit(filled, config):
    filled("snapshot")
    producers = WatchedProducers()
    limited = config("snapshot", "pipelined", shards=3, limits={"max_in_flight_records": LIMIT})
    assert Harvest(limited, kafka_producer_provider=producers).drain(60).records == RECORDS
    assert 1 <= producers.most <= 6, "three with two each"


@pytest.mark.parametrize(("source", "delivery"), [("mark", "barrier"), ("snapshot", "transactional")])
def test_the_limit_holds_after_batches_that_failed_or_were_refused(
    filled, config, outstanding, bootstrap_servers, source, delivery
):
    """A refused batch is halved until the record is alone; then batches grow again, up to the limit."""
    outbox = filled(source)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    configure_topic(admin, outbox.topic, {"max.message.bytes": "2000"})
    table = outbox.name.identifier.as_string(None)
    outbox.connection.execute(
        f"UPDATE {table} SET kafka_value = (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 180) g) "  # noqa: S608 - ours
        "WHERE id IN (9, 31)"
    )
    lz4 = {"compression.type": "lz4"}  # so that only the broker can tell
    limits = {"max_in_flight_records": LIMIT}
    limited = config(source, delivery, parking="skip", limits=limits, producer_kafka_config=lz4)
    assert Harvest(limited).drain(60).records == RECORDS - 2
    assert max(outstanding) == LIMIT


def test_the_limit_holds_for_parked_records_that_are_sent_again(filled, config, outstanding, dsn, unique, make_topic):
    outbox, later = filled("snapshot", 0), unique("later")
    outbox.topic = later
    outbox.fill(RECORDS, keys=RECORDS)
    limited = config("snapshot", "barrier", limits={"max_in_flight_records": LIMIT})
    assert Harvest(limited).drain(60).records == 0
    make_topic(name=later, partitions=1)
    outbox.connection.execute("UPDATE outbox_parked_ids SET retry = true")
    outstanding.clear()
    assert Harvest(limited).drain(60).records == RECORDS
    assert max(outstanding) == LIMIT


class Rows:
    """Notes how many rows each call of a source returned, and the limit of its statement."""

    def __init__(self, monkeypatch):
        self.limits, self.found = [], []
        fetch = MarkSource.fetch

        def marking(source, limit, delivered=()):
            claimed = fetch(source, limit, delivered)
            return self._note(limit, claimed, claimed.rows)

        monkeypatch.setattr(MarkSource, "fetch", marking)
        execute = MarkSource._execute_mark

        def executing(source, limit):
            cursor = execute(source, limit)
            self.found.append(cursor.rowcount)
            return cursor

        monkeypatch.setattr(MarkSource, "_execute_mark", executing)
        for each in (SnapshotSource, TransactionIdSource):
            monkeypatch.setattr(each, "read", self._reading(each.read))

    def _reading(self, read):
        def reading(source, limit):
            page = read(source, limit)
            return self._note(limit, page, page.rows if page is not None else [])

        return reading

    def _note(self, limit, answer, rows):
        self.limits.append(limit)
        self.found.append(len(rows))
        return answer


@pytest.mark.parametrize(("source", "delivery"), SOME, ids=["-".join(way) for way in SOME])
def test_no_statement_marks_or_reads_more_rows_than_the_limit(
    filled, config, monkeypatch, bootstrap_servers, source, delivery
):
    outbox, rows = filled(source), Rows(monkeypatch)
    assert Harvest(config(source, delivery, limits={"mark_query_records": LIMIT})).drain(60).records == RECORDS
    assert max(rows.limits) == LIMIT
    assert max(rows.found) == LIMIT
    found = read_topic(bootstrap_servers, outbox.topic)
    assert {each.outbox_id for each in found} >= set(range(1, RECORDS + 1))


def test_without_the_limit_a_mark_takes_a_page(filled, config, monkeypatch):
    filled("mark", 600)
    rows = Rows(monkeypatch)
    assert Harvest(config("mark", "barrier")).drain(60).records == 600
    assert max(rows.found) == 500


@pytest.mark.parametrize(("source", "shards"), [("mark", 1), ("snapshot", 2)])
def test_the_keys_in_flight_are_those_of_the_records_in_flight(filled, config, source, shards):
    """While a batch is waited for. Of a shard whose thread goes on meanwhile a snapshot may have more or less."""
    filled(source)
    seen, producers = [], WatchedProducers()
    harvest = Harvest(config(source, "barrier", shards=shards), kafka_producer_provider=producers)
    producers.at_flush = lambda: seen.append((harvest.in_flight_records, harvest.in_flight_record_keys))
    assert harvest.in_flight_record_keys == []
    assert harvest.drain(60).records == RECORDS
    if shards == 1:
        assert all(count == len(keys) for count, keys in seen)
    in_flight = {key for _, keys in seen for key in keys}
    assert in_flight == {f"key-{number}" for number in range(RECORDS)}
    assert all(len(keys) == len(set(keys)) for _, keys in seen)
    assert (harvest.in_flight_records, harvest.in_flight_record_keys) == (0, [])


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("delivery", ["pipelined", "transactional", "sequenced"])
def test_where_a_key_may_have_several_records_in_flight_none_are_noted(filled, config, delivery):
    filled("snapshot")
    seen, producers = [], WatchedProducers()
    harvest = Harvest(config("snapshot", delivery), kafka_producer_provider=producers)
    producers.at_flush = lambda: harvest.is_leader and seen.append(harvest.in_flight_record_keys)
    assert harvest.drain(60).records == RECORDS
    assert seen
    assert set(seen) == {None}
    assert harvest.in_flight_record_keys == [], "it leads no more"
