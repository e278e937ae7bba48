"""Parked records on a real Postgres: whole through both tables, in order, one transaction at a time."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.parking import Parking
from support.waiting import eventually

from harvest_lib.errors import DatabaseAccessDenied, DatabaseError, OutboxTableError, ParkedRecordMissing
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.outbox.parking import ParkedCounts, ParkedRecords, ParkedSelection, ParkedSummary
from harvest_lib.record import OutboxRecord

pytestmark = pytest.mark.gate


class Place:
    """An outbox and its parked records: `write` keys, `park` by id, look, retry, drop."""

    def __init__(self, dsn, name="outbox"):
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.name = name
        self.outbox = OutboxTable.parse(name)
        self.parked = ParkedRecords(self.outbox)
        self.outbox.create(self.connection)
        self.parked.create(self.connection)
        self.harvester = Parking(self.connection, self.parked)

    def write(self, *keys, topic="orders"):
        append(self.connection, [OutboxRecord(topic=topic, key=key, value="v") for key in keys], table=self.name)

    def park(self, *ids, held=()):
        for record_id in ids:
            self.harvester.move(record_id)
        for record_id in held:
            self.harvester.move(record_id, held=min(ids))

    def retry(self, *ids, keep_order=True, **selection):
        selected = ParkedSelection(ids=ids or None, **selection)
        return self.parked.retry(self.connection, selected, keep_order=keep_order)

    def drop(self, *ids, **selection):
        return self.parked.drop(self.connection, ParkedSelection(ids=ids or None, **selection))

    @property
    def ids(self):
        return self.harvester.ids()


@pytest.fixture
def place(dsn):
    made = Place(dsn)
    yield made
    made.connection.close()


def test_a_parked_record_goes_back_with_what_is_held_behind_it(place):
    place.write("a", "b", "a", "a", "b")
    place.park(1, held=[3, 4])
    assert place.ids == ([2, 5], [1], [3, 4])
    done = place.retry(1)
    assert (done.parked, done.held, done.waiting) == (1, 2, 0)
    assert place.ids == ([1, 2, 3, 4, 5], [], [])


def test_nothing_of_a_key_goes_back_before_an_earlier_one_that_stays(place):
    """I4."""
    place.write("a", "a", "a", "a")
    place.park(1, 3, held=[2, 4])
    done = place.retry(3)
    assert (done.parked, done.held, done.waiting, done.behind) == (0, 0, 1, (1,))
    assert place.ids == ([], [1], [2, 3, 4])
    done = place.retry(1)
    assert (done.parked, done.held) == (1, 3)
    assert place.ids == ([1, 2, 3, 4], [], [])


def test_the_first_of_two_takes_with_it_only_what_is_held_between_them(place):
    place.write("a", "a", "a", "a")
    place.park(1, 3, held=[2, 4])
    place.retry(1)
    assert place.ids == ([1, 2], [3], [4])


def test_a_held_record_waits_whoever_asks_for_it(place):
    place.write("a", "a")
    place.park(1, held=[2])
    done = place.retry(2)
    assert (done.waiting, done.behind) == (1, (1,))
    assert place.ids == ([], [1], [2])


def test_without_order_a_selected_record_goes_back_at_once(place):
    place.write("a", "a")
    place.park(1, 2)
    assert place.retry(2, keep_order=False).parked == 1
    assert place.ids == ([2], [1], [])


def test_records_are_selected_by_topic_by_key_or_all(place):
    place.write("a", "b")
    place.write("a", "c", topic="invoices")
    place.park(1, 2, 4, held=[3])
    done = place.retry(topics=["invoices"])
    assert (done.parked, done.held, done.waiting) == (1, 1, 0), "a of orders is in nobody's way there"
    assert place.retry(key="a").parked == 1
    assert place.retry().parked == 1
    assert place.ids == ([1, 2, 3, 4], [], [])
    assert place.retry() == place.parked.retry(place.connection, ParkedSelection(key="none")), "nothing"


def test_a_parked_record_stands_in_the_way_of_its_topic_only(place):
    place.write("a")
    place.write("a", topic="invoices")
    place.write("a", "a")
    place.park(1, 2, held=[3])
    done = place.retry(2)
    assert (done.parked, done.held, done.waiting) == (1, 0, 0)
    assert place.ids == ([2, 4], [1], [3])


def test_a_dropped_record_is_gone_and_frees_its_key(place):
    place.write("a", "a", "a", "b")
    place.park(1, 4, held=[2, 3])
    done = place.drop(1)
    assert (done.dropped, done.released) == (1, 2)
    assert place.ids == ([2, 3], [4], [])


def test_by_key_topic_or_all_only_the_parked_are_dropped_and_a_held_one_by_its_id(place):
    place.write("a", "a", "a", "b", "b")
    place.park(1, 4, held=[2, 3, 5])
    assert place.drop(2).dropped == 1
    assert place.ids == ([], [1, 4], [3, 5])
    assert (place.drop(key="a").dropped, place.ids) == (1, ([3], [4], [5]))
    assert (place.drop(topics=["orders"]).dropped, place.ids) == (1, ([3, 5], [], []))


def test_while_another_of_the_key_stays_parked_a_drop_frees_only_what_was_before_that(place):
    place.write("a", "a", "a", "a")
    place.park(1, 3, held=[2, 4])
    assert place.drop(1).released == 1
    assert place.ids == ([2], [3], [4])


def test_ids_that_are_not_parked_change_nothing(place):
    place.write("a", "b")
    place.park(1)
    for change in (place.retry, place.drop):
        with pytest.raises(ParkedRecordMissing, match="2, 7"):
            change(1, 2, 7)
    with pytest.raises(ParkedRecordMissing):
        place.parked.show(place.connection, 2)
    assert place.ids == ([2], [1], [])


RECORDS = [
    OutboxRecord(
        topic="orders", key="k\"é'\\", value="line\none\ttab \\n \u2028 {\"a\": 'ü%s'} 🙂", headers=[("a", None)]
    ),
    OutboxRecord(topic="orders", key="", value=None, headers=[("type", "x"), ("type", '{"a",b\\}'), ("", "")]),
    OutboxRecord(topic="orders", key="e", value=""),
]


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", ["outbox", 'Mixed "Case"', "100%s %(x)s %", "{table}", "billing.Outbox", "n" * 56])
def test_a_record_comes_back_as_it_was(dsn, name):
    """Whatever it holds, and columns of others too."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA billing")
    place = Place(dsn, name)
    place.parked.create(place.connection)
    place.parked.check(place.connection)
    change = sql.SQL(
        "ALTER TABLE {} ADD COLUMN {} numeric DEFAULT 0.1, ADD note jsonb DEFAULT '[1]', "
        "ADD raw bytea DEFAULT '\\x00ff', ADD tx xid8 NOT NULL DEFAULT pg_current_xact_id(), "
        "ADD size int GENERATED ALWAYS AS (length(kafka_key)) STORED"
    ).format(place.outbox.identifier, sql.Identifier('odd "100%s"'))
    place.connection.execute(change)
    append(place.connection, RECORDS, table=name)
    unequal = "UPDATE {table} SET kafka_header_keys = '{{a,NULL,b}}', leader_id = gen_random_uuid() WHERE id = 3"
    place.harvester.execute(unequal)
    everything = "SELECT to_jsonb(o) || '{{\"leader_id\": null}}' FROM {table} AS o ORDER BY id"
    before = place.harvester.execute(everything).fetchall()
    place.park(1, 2, 3)
    assert place.harvester.execute(everything).fetchall() == []
    assert [each.key for each in place.parked.list(place.connection)] == [record.key for record in RECORDS]
    assert place.parked.show(place.connection, 1).row["kafka_value"] == RECORDS[0].value
    place.harvester.execute("UPDATE {parked} SET record = record || jsonb_build_object('leader_id', gen_random_uuid())")
    assert place.retry(1, 2, 3).parked == 3
    assert place.harvester.execute(everything).fetchall() == before
    assert place.harvester.execute("SELECT FROM {table} WHERE leader_id IS NOT NULL").fetchall() == [], "no mark"
    place.write("next")
    assert place.ids[0] == [1, 2, 3, 4], "the sequence goes on"
    place.connection.close()


def test_columns_that_jsonb_would_change_come_back_as_they_were(place):
    texts = ['{"b": 1,"a": 1e2, "a":2}', '["\\u0000"]', "1e2", '"{}"', "null"]
    place.connection.execute("CREATE TYPE pair AS (first json, second text)")
    place.connection.execute("ALTER TABLE outbox ADD note json, ADD notes json[], ADD pair pair, ADD low float8")
    place.write(*map(str, range(len(texts))))
    for record_id, text in enumerate(texts, start=1):
        place.connection.execute(
            "UPDATE outbox SET note = %(text)s, notes = ARRAY[%(text)s]::json[], pair = (%(text)s, 'x'), low = '-0' "
            "WHERE id = %(id)s",
            {"id": record_id, "text": text},
        )
    everything = "SELECT o::text FROM outbox AS o ORDER BY id"
    before = place.connection.execute(everything).fetchall()
    place.park(*range(1, len(texts) + 1))
    assert place.parked.show(place.connection, 1).row["note"] == texts[0]
    place.retry()
    assert place.connection.execute(everything).fetchall() == before


def test_a_column_that_came_meanwhile_gets_its_default_and_one_that_went_is_left_out(place):
    place.connection.execute("ALTER TABLE outbox ADD gone int DEFAULT 1")
    place.write("a", "b")
    place.park(1)
    place.connection.execute("ALTER TABLE outbox DROP gone, ADD fresh int NOT NULL DEFAULT 7")
    place.park(2)
    place.retry()
    assert place.connection.execute("SELECT fresh FROM outbox ORDER BY id").fetchall() == [(7,), (7,)]


def test_ids_that_are_always_generated_are_kept(place):
    place.connection.execute("ALTER TABLE outbox ALTER id DROP DEFAULT, ALTER id ADD GENERATED ALWAYS AS IDENTITY")
    place.write("a", "a")
    place.park(1)
    place.retry()
    assert place.ids[0] == [1, 2]


def test_a_key_too_long_for_a_b_tree_can_be_parked(place):
    place.connection.execute("ALTER TABLE outbox ALTER kafka_key TYPE text")
    key = random.Random(1).randbytes(50_000).hex()
    place.connection.execute(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) "
        "VALUES (now(), 't', %s, '{}', '{}')",
        (key,),
    )
    place.park(1)
    assert place.retry(key=key).parked == 1


def test_an_id_that_was_given_out_again_is_not_overwritten(place):
    place.write("canary-a")
    place.park(1)
    place.connection.execute("ALTER SEQUENCE outbox_id_seq RESTART")
    place.write("b")
    with pytest.raises(DatabaseError, match="taken") as caught:
        place.retry(1)
    assert "canary" not in str(caught.value)
    assert place.ids == ([1], [1], [])


def test_a_list_is_cut_and_filtered_and_has_no_payload(place):
    began = time.time()
    place.write("a", "b", "a")
    place.park(1, 2, held=[3])
    assert [each.id for each in place.parked.list(place.connection, limit=2)] == [1, 2]
    assert [(each.id, each.held) for each in place.parked.list(place.connection, ParkedSelection(key="a"))] == [
        (1, False),
        (3, True),
    ]
    assert place.parked.list(place.connection, ParkedSelection(topics=["none"])) == []
    (first, *_) = place.parked.list(place.connection)
    assert first.reason == "refused"
    assert first.age_seconds >= 0
    assert first.age_seconds <= time.time() - began
    assert not hasattr(first, "row")
    assert place.parked.counts(place.connection) == ParkedCounts(parked=2, held=1)
    assert place.parked.counts(place.connection, ParkedSelection(key="b")) == ParkedCounts(parked=1, held=0)


def test_a_summary_has_numbers_topics_and_reasons(place):
    assert place.parked.summary(place.connection) == ParkedSummary()
    place.write("a", "b", "a", "a")
    place.park(1, held=[3, 4])
    place.park(2)
    found = place.parked.summary(place.connection)
    assert (found.parked, found.held, found.ids, found.is_estimate) == (2, 2, (1, 2), False)
    assert found.topics == ("orders",)
    assert len(found.reasons) == 1
    assert found.oldest_age_seconds > 0
    place.connection.execute("DROP TABLE outbox_parked")
    assert place.parked.summary(place.connection) == ParkedSummary()


def test_tables_that_are_not_fit_are_named(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        parked = ParkedRecords(OutboxTable.parse("outbox"))
        assert parked.counts(connection) is None
        for asked in (parked.check, parked.list, lambda c: parked.retry(c, ParkedSelection())):
            with pytest.raises(OutboxTableError, match="harvest init"):
                asked(connection)
        connection.execute("CREATE TABLE outbox_parked (id bigint, kafka_key text)")
        with pytest.raises(OutboxTableError, match="reason is missing"):
            parked.check(connection)
        with pytest.raises(OutboxTableError, match="56 bytes"):
            ParkedRecords(OutboxTable.parse("é" * 29)).check(connection)


def test_the_table_is_made_beside_the_outbox_whatever_the_search_path_begins_with(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        outbox = OutboxTable.parse("outbox")
        outbox.create(connection)
        connection.execute("CREATE SCHEMA mine")
        connection.execute("SET search_path = mine, public")
        assert ParkedRecords(outbox).create(connection)
        assert not ParkedRecords(outbox).create(connection)
        assert connection.execute("SELECT to_regclass('public.outbox_parked') IS NOT NULL").fetchone() == (True,)
        ParkedRecords(outbox).check(connection)


def test_missing_privileges_are_named(place, dsn):
    place.connection.execute('DROP ROLE IF EXISTS "op er"')
    place.connection.execute("CREATE ROLE \"op er\" LOGIN PASSWORD 'p'")
    place.write("a", "a")
    place.park(1)
    with psycopg.connect(make_conninfo(dsn, user="op er", password="p"), autocommit=True) as operator:
        place.connection.execute('GRANT SELECT, INSERT ON outbox_parked TO "op er"')
        with pytest.raises(DatabaseAccessDenied, match='GRANT SELECT, INSERT, DELETE ON "outbox_parked" TO "op er"'):
            place.parked.check(operator)
        place.connection.execute('GRANT DELETE ON outbox_parked TO "op er"')
        place.parked.check(operator)
        with pytest.raises(DatabaseAccessDenied, match='GRANT SELECT, INSERT ON "outbox" TO "op er"'):
            place.parked.retry(operator, ParkedSelection())
        place.connection.execute('GRANT INSERT ON outbox TO "op er"')
        assert place.parked.retry(operator, ParkedSelection()).parked == 1
        place.connection.execute('REVOKE SELECT ON outbox_parked FROM "op er"')
        assert place.parked.counts(operator) is None
        with pytest.raises(DatabaseAccessDenied, match='may not read "outbox_parked"') as denied:
            place.parked.summary(operator)
        assert denied.value.next_step == 'GRANT SELECT ON "outbox_parked" TO "op er"'
    place.connection.execute('DROP OWNED BY "op er"')
    place.connection.execute('DROP ROLE "op er"')


def test_a_retry_waits_for_whoever_holds_more_of_the_key(place, dsn):
    """The record that is being held behind goes back with the others: nothing is left behind a key that is free."""
    place.write("a", "a", "a")
    place.park(1, held=[2])
    with psycopg.connect(dsn) as harvester, psycopg.connect(dsn, autocommit=True) as operator:
        holding = Parking(harvester, place.parked)
        holding.lock()
        with ThreadPoolExecutor() as threads:
            retrying = threads.submit(place.parked.retry, operator, ParkedSelection(ids=[1]))
            waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid = %s"
            eventually(lambda: place.connection.execute(waits, (operator.info.backend_pid,)).fetchone(), "it waits")
            holding.move(3, held=1)
            harvester.commit()
            assert retrying.result(60).held == 2
    assert place.ids == ([1, 2, 3], [], [])


class Harvester:
    """As simple as one can be: takes the head and delivers it, or parks it, or holds it. One transaction a look."""

    def __init__(self, dsn, parked, dice):
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._parking = Parking(self._connection, parked)
        self._dice = dice
        self.delivered = []

    def look(self, *, refuse):
        """Harvest once; return True if there was anything."""
        taken, refused = [], set()
        with self._connection.transaction():
            self._parking.lock()
            rows = self._parking.execute(
                "SELECT id, kafka_topic, kafka_key FROM {table} ORDER BY id LIMIT 10"
            ).fetchall()
            found = self._parking.execute("SELECT kafka_topic, kafka_key, min(id) FROM {parked} GROUP BY 1, 2")
            first = {(topic, key): lowest for topic, key, lowest in found}
            for record_id, *names in rows:
                key = tuple(names)
                if self._dice.random() < refuse and (key not in first or key in refused):
                    self._parking.move(record_id)
                    first.setdefault(key, record_id)
                    refused.add(key)
                elif first.get(key, record_id) < record_id:
                    self._parking.move(record_id, held=first[key])
                else:
                    self._parking.execute("DELETE FROM {table} WHERE id = %(id)s", id=record_id)
                    taken.append((key, record_id))
        self.delivered += taken
        return bool(rows)

    def close(self):
        self._connection.close()


def test_operators_a_writer_and_a_harvester_at_once_lose_nothing_and_keep_the_order(place, dsn):
    """I1, I4, I8. Every record is delivered once, in the order of its key, or dropped, whatever operators do then."""
    harvester = Harvester(dsn, place.parked, random.Random(1))
    dropped, retried, over = [], [], threading.Event()

    def write():
        number = 0
        with psycopg.connect(dsn, autocommit=True) as connection:
            while number < 300 or sum(dropped) < 5 or sum(retried) < 20:
                topic = "orders" if number % 3 else "invoices"
                append(connection, [OutboxRecord(topic=topic, key=f"k{number % 7}", value="v")])
                number += 1
        return number

    def operate(seed):
        dice = random.Random(seed)
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.is_set():
                listed = place.parked.list(connection)
                some = dice.sample(listed, min(len(listed), dice.randint(1, 3)))
                choices = [{"ids": [each.id for each in some]}, {"topics": ["orders"]}, {"key": "k1"}]
                selection = ParkedSelection(**dice.choice(choices if some else choices[1:]))
                try:
                    if dice.random() < 0.2:
                        dropped.append(place.parked.drop(connection, selection).dropped)
                    else:
                        retried.append(place.parked.retry(connection, selection).parked)
                except ParkedRecordMissing:
                    continue  # another one was faster

    def harvest():
        while not over.is_set():
            harvester.look(refuse=0.1)

    with ThreadPoolExecutor() as threads:
        running = [threads.submit(operate, seed) for seed in range(3)] + [threads.submit(harvest)]
        try:
            written = threads.submit(write).result(60)
        finally:
            over.set()
        for each in running:
            each.result(60)
    place.retry()
    while harvester.look(refuse=0):
        pass
    harvester.close()
    assert place.ids == ([], [], [])
    assert len(harvester.delivered) + sum(dropped) == written
    by_key = {}
    for key, record_id in harvester.delivered:
        by_key.setdefault(key, []).append(record_id)
    assert all(ids == sorted(set(ids)) for ids in by_key.values())
