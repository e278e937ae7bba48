"""A watcher's subscription, on the real Postgres: nothing is left out, what is repeated is the same, and one watcher
saves."""

from itertools import chain

import psycopg
import pytest
from support.native_outbox import NativeOutbox
from support.outbox import harvest_config

from harvest_lib.airflow.watched_outbox import WatchedOutbox, WatchReplaced, WatchSettings
from harvest_lib.errors import ConfigError, DatabaseUnavailable, OutboxTableError
from harvest_lib.subscriptions.admin import Subscriptions

pytestmark = pytest.mark.gate

WRITE = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, 'secret') RETURNING id"


class Shop:
    """An outbox, its writers, and watchers of it."""

    def __init__(self, dsn):
        self.dsn = dsn
        self.outbox = NativeOutbox(dsn, "outbox")
        self.config = harvest_config(dsn, "localhost:1", "group", source="snapshot", delivery="sequenced")
        self._writers, self._watchers = [], []

    def write(self, *keys, topic="orders", connection=None):
        return [(connection or self.outbox.connection).execute(WRITE, (topic, key)).fetchone()[0] for key in keys]

    def writer(self):
        """Return a connection in a transaction of its own."""
        self._writers.append(psycopg.connect(self.dsn))
        return self._writers[-1]

    def watcher(self, **watch):
        made = WatchedOutbox(self.config, WatchSettings(**{"name": "watcher", "start": "beginning", **watch}))
        self._watchers.append(made)
        made.open()
        return made

    def admin(self):
        return Subscriptions(self.outbox.connection, self.outbox.name.placed(self.outbox.connection), None)

    def close(self):
        for each in (*self._watchers, *self._writers):
            each.close()
        self.outbox.close()


@pytest.fixture
def shop(dsn):
    made = Shop(dsn)
    yield made
    made.close()


def drain(watcher, *, saves=True):
    """Return the payloads of all events, saving each."""
    found = []
    while events := watcher.read():
        for event in events:
            if event.payload is not None:
                found.append(event.payload)
            if saves:
                watcher.save(event.position, event.records)
    return found


def without_digest(payload):
    name, _, first = payload["id"].split(":")
    return {**payload, "id": f"{name}:{first}"}


def ids(payloads):
    return [each["ids"] for each in payloads]


def records(lists):
    return [*chain.from_iterable(lists)]


def test_each_record_has_an_event_and_none_shows_a_value(shop):
    first, second = shop.write("a", "b")
    watcher = shop.watcher()
    assert [without_digest(each) for each in drain(watcher)] == [
        {"id": f"watcher:{first}", "ids": [first], "topics": ["orders"]},
        {"id": f"watcher:{second}", "ids": [second], "topics": ["orders"]},
    ]
    (third,) = shop.write("c")
    assert ids(drain(watcher)) == [[third]]
    watcher.close()
    assert drain(shop.watcher()) == []
    assert shop.outbox.subscription("watcher")["checkpoint"]["delivered"] == 3


def test_keys_are_shown_only_if_asked_for(shop):
    shop.write("a", "b")
    assert [each["keys"] for each in drain(shop.watcher(shows_keys=True, most_records=2))] == [["a", "b"]]


def test_a_record_that_commits_late_with_a_lower_id_is_not_left_out(shop):
    late = shop.writer()
    (low,) = shop.write("late", connection=late)
    (high,) = shop.write("early")
    watcher = shop.watcher()
    assert ids(drain(watcher)) == [[high]]
    late.commit()
    assert ids(drain(watcher)) == [[low]]


@pytest.mark.parametrize(("most", "saved"), [(1, 0), (1, 2), (3, 0), (3, 1)])
def test_events_that_were_not_saved_come_again_and_are_the_same(shop, most, saved):
    late = shop.writer()
    (between,) = shop.write("late", connection=late)
    shop.write(*"abcdefg")
    watcher = shop.watcher(most_records=most)
    found = watcher.read()
    for event in found[:saved]:
        watcher.save(event.position, event.records)
    late.commit()  # a window that began now would have this record too, with a lower id
    shop.write("h")
    repeated = drain(shop.watcher(most_records=most))
    same = {each["id"]: each["ids"] for each in repeated}
    assert {each.payload["id"]: each.payload["ids"] for each in found[saved:]}.items() <= same.items()
    assert [*same.values()] == ids(repeated), "no event twice"
    first = records(ids(each.payload for each in found[:saved]))
    assert sorted([*first, *records(ids(repeated))]) == shop.outbox.ids()
    assert [between] in ids(repeated) or most > 1


@pytest.mark.parametrize("most", [1, 300, 700])
def test_a_window_of_many_pages_is_read_whole(shop, most):
    shop.outbox.connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key) SELECT 'orders', n::text FROM generate_series(1, 1300) n"
    )
    found = ids(drain(shop.watcher(most_records=most)))
    assert records(found) == shop.outbox.ids()
    assert [len(each) for each in found] == [most] * (1300 // most) + [1300 % most] * (1300 % most > 0)


def test_events_that_span_pages_are_the_same_when_they_come_again(shop):
    shop.outbox.connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key) SELECT 'orders', n::text FROM generate_series(1, 1300) n"
    )
    watcher = shop.watcher(most_records=300)
    first, *others = watcher.read()
    watcher.save(first.position, first.records)
    rest = [each.payload for each in others] + drain(watcher, saves=False)
    assert drain(shop.watcher(most_records=300)) == rest


def test_a_watcher_reads_the_records_of_its_filter(shop):
    shop.write("eu-1", "us-1")
    shop.write("eu-2", topic="refunds")
    assert [each["topics"] for each in drain(shop.watcher(topics=["refunds"], name="refunds"))] == [["refunds"]]
    assert len(drain(shop.watcher(topics=["orders"], keys="^eu-", name="eu"))) == 1


def test_another_filter_under_the_same_name_is_refused(shop):
    shop.watcher(topics=["orders"]).close()
    shop.watcher().close()  # no filter of its own: that of the subscription
    with pytest.raises(ConfigError, match="has another filter"):
        shop.watcher(topics=["refunds"])


def test_a_watcher_begins_at_now_unless_it_is_told_otherwise(shop):
    shop.write("before")
    watcher = shop.watcher(start="now")
    (after,) = shop.write("after")
    assert ids(drain(watcher)) == [[after]]
    watcher.close()
    shop.write("meanwhile")
    assert len(drain(shop.watcher(start="now"))) == 1


def test_a_watcher_that_was_replaced_saves_nothing(shop):
    shop.write("a", "b")
    first = shop.watcher()
    events = first.read()
    second = shop.watcher()
    with pytest.raises(WatchReplaced, match="another watcher"):
        first.save(events[-1].position, 2)
    assert len(drain(second)) == 2


def test_a_watcher_that_waits_sees_that_its_subscription_was_rewound(shop):
    shop.write("a", "b")
    watcher = shop.watcher()
    assert len(drain(watcher)) == 2
    shop.admin().rewind("watcher", to="beginning")
    watcher._checked = float("-inf")
    with pytest.raises(WatchReplaced):
        watcher.read()
    watcher.close()
    assert watcher.open() == "1:1:"
    assert len(drain(watcher)) == 2


def test_retention_keeps_what_has_no_event_yet(shop):
    shop.write("a")
    watcher = shop.watcher()
    before = shop.outbox.subscription("watcher")["low_watermark"]
    (event,) = watcher.read()
    assert shop.outbox.subscription("watcher")["low_watermark"] == before
    watcher.save(event.position, event.records)
    row = shop.outbox.subscription("watcher")
    assert (row["low_watermark"], row["retention_hold"]) == (event.position["prev"], None)


def test_the_position_passes_records_that_the_filter_leaves_out(shop):
    watcher = shop.watcher(topics=["refunds"])
    before = shop.outbox.subscription("watcher")["low_watermark"]
    for _ in range(1_200):
        shop.outbox.connection.execute("SELECT pg_current_xact_id()")
    watcher._source._advanced_at = float("-inf")
    assert drain(watcher) == []
    assert shop.outbox.subscription("watcher")["low_watermark"] != before


def test_a_lost_connection_is_made_again_under_the_same_epoch(shop):
    shop.write("a")
    watcher = shop.watcher()
    (event,) = watcher.read()
    shop.outbox.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid()"
    )
    with pytest.raises(DatabaseUnavailable):
        watcher.save(event.position, event.records)
    watcher.save(event.position, event.records)
    with pytest.raises(DatabaseUnavailable):
        watcher.read()
    (second,) = shop.write("b")
    assert ids(drain(watcher)) == [[second]], "it goes on where it was"
    assert drain(shop.watcher()) == []


def test_a_lost_connection_between_the_pages_of_a_window_loses_and_repeats_nothing(shop):
    shop.outbox.connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key) SELECT 'orders', n::text FROM generate_series(1, 1300) n"
    )
    for most in (1, 300):
        watcher = shop.watcher(most_records=most, name=f"watcher{most}")
        found = watcher.read()
        shop.outbox.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
        failures = 0
        while True:
            try:
                events = watcher.read()
            except DatabaseUnavailable:
                failures += 1
                continue
            if not events:
                break
            found += events
        assert failures, "the connections were lost"
        assert records(ids(each.payload for each in found if each.payload)) == shop.outbox.ids()


def test_records_of_an_outbox_that_is_made_anew_have_other_ids_of_events(shop):
    shop.write("a")
    watcher = shop.watcher()
    (before,) = drain(watcher)
    watcher.close()
    shop.outbox.connection.execute("DROP TABLE outbox CASCADE; DROP TABLE outbox_subscriptions CASCADE")
    shop.outbox.close()
    shop.outbox = NativeOutbox(shop.dsn, "outbox")
    assert shop.write("b") == before["ids"]
    (after,) = drain(shop.watcher())
    assert after["id"] != before["id"]


def test_an_outbox_whose_rows_are_deleted_is_refused(shop):
    shop.outbox.connection.execute(
        "INSERT INTO outbox_subscriptions (subscription, shard, shards, source) VALUES ('default', 0, 1, 'mark')"
    )
    with pytest.raises(OutboxTableError, match="watch the topic instead"):
        shop.watcher()


def test_a_table_that_is_missing_is_told(shop):
    shop.config = harvest_config(
        shop.dsn, "localhost:1", "group", source="snapshot", delivery="sequenced", outbox_table="nowhere"
    )
    with pytest.raises(OutboxTableError, match="nowhere"):
        shop.watcher()


def test_the_subscription_of_a_harvester_is_refused(shop):
    with pytest.raises(ConfigError, match="that the harvester delivers by"):
        shop.watcher(name="default")
    shop.watcher(name="mine").close()
    shop.outbox.connection.execute(
        """UPDATE outbox_subscriptions SET checkpoint = checkpoint || '{"kept_in": "kafka"}'"""
    )
    with pytest.raises(ConfigError, match="belongs to a harvester"):
        shop.watcher(name="mine")


@pytest.mark.parametrize("most", [0, 1_001])
def test_a_number_of_records_out_of_range_is_refused(most):
    with pytest.raises(ConfigError, match="most_records"):
        WatchSettings(name="watcher", most_records=most).check()
