"""The promises of every source, checked on the fake that the loop's tests use and on the real one."""

import threading
import uuid

import psycopg
import pytest
from support.fakes import FakeSource, FakeTable
from support.rows import row
from support.waiting import eventually

from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedRecords, ParkedSelection
from harvest_lib.source import MarkSource

pytestmark = pytest.mark.quick

INSERT = """
INSERT INTO outbox (id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (%s, now(), %s, %s, %s, %s, %s)
"""


class RealOutbox:
    """The same handle on a real table that FakeTable is on a fake one."""

    def __init__(self, dsn):
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        self._table = OutboxTable.parse("outbox")
        self._table.create(self.connection)
        ParkedRecords(self._table).create(self.connection)

    def source(self):
        return MarkSource(self.dsn, self._table.identifier, self._table.parked.identifier)

    def insert(self, *rows):
        with self.connection.cursor() as cursor:
            cursor.executemany(INSERT, rows)

    def leaders(self):
        return dict(self.connection.execute("SELECT id, leader_id FROM outbox ORDER BY id").fetchall())


class FakeOutbox(FakeTable):
    def source(self):
        return FakeSource(self)


@pytest.fixture(params=["fake", "postgres"])
def outbox(request):
    if request.param == "fake":
        yield FakeOutbox()
        return
    real = RealOutbox(request.getfixturevalue("dsn"))
    yield real
    real.connection.close()


@pytest.fixture
def leader(outbox):
    source = outbox.source()
    source.open(uuid.uuid4())
    yield source
    source.close()


def ids(found):
    return [r[0] for r in getattr(found, "rows", found)]


def test_rows_come_by_id_up_to_the_limit_and_only_once(outbox, leader):
    outbox.insert(*[row(n, "k") for n in (5, 3, 9, 1, 7)])
    assert ids(leader.fetch(3)) == [1, 3, 5]
    assert ids(leader.fetch(3)) == [7, 9]
    assert leader.fetch(3).rows == []


def test_a_row_comes_whole(outbox, leader):
    whole = (1, "topic", "kéy", None, ["a", "a", "b"], ["1", None, ""])
    outbox.insert(whole)
    assert list(leader.fetch(1).rows) == [whole]


def test_a_late_row_with_a_low_id_is_fetched(outbox, leader):
    outbox.insert(row(5, "k"))
    leader.fetch(10)
    outbox.insert(row(2, "k"))
    assert ids(leader.fetch(10)) == [2]


def test_what_was_acknowledged_is_gone_and_may_be_acknowledged_again(outbox, leader):
    outbox.insert(row(1, "k"), row(2, "k"))
    leader.fetch(10)
    leader.fetch(0, [1])
    leader.fetch(0, [1])
    assert set(outbox.leaders()) == {2}


def test_a_reset_row_is_fetched_again_from_the_head(outbox, leader):
    outbox.insert(row(1, "k"), row(2, "k"))
    leader.fetch(10)
    leader.reset([1])
    outbox.insert(row(3, "k"))
    assert ids(leader.fetch(10)) == [1, 3]


def test_a_new_leader_id_takes_everything_that_was_not_acknowledged(outbox, leader):
    outbox.insert(row(1, "k"), row(2, "k"), row(3, "k"))
    leader.fetch(10)
    leader.fetch(0, [2])
    leader.open(uuid.uuid4())
    assert ids(leader.fetch(10)) == [1, 3]


def test_a_fenced_leader_cannot_reset_what_its_successor_took(outbox, leader):
    """I6. A reset that does not check the leader id unmarks the successor's rows, which are then sent twice."""
    outbox.insert(row(1, "k"))
    leader.fetch(10)
    successor = outbox.source()
    successor_id = uuid.uuid4()
    successor.open(successor_id)
    assert ids(successor.fetch(10)) == [1]
    leader.reset([1])
    assert outbox.leaders() == {1: successor_id}
    successor.close()


def test_a_delivered_row_is_purged_even_if_a_fenced_leader_has_marked_it(outbox, leader):
    """Left in the table it would be marked and sent once more, behind its successors."""
    outbox.insert(row(1, "k"))
    leader.fetch(10)
    zombie = outbox.source()
    zombie.open(uuid.uuid4())
    zombie.fetch(10)
    leader.fetch(0, [1])
    assert outbox.leaders() == {}
    zombie.close()


def test_a_closed_source_answers_nothing_until_it_is_opened(outbox, leader):
    outbox.insert(row(1, "k"))
    leader.fetch(1)
    leader.close()
    for call in (lambda: leader.fetch(1), lambda: leader.fetch(0, [1]), lambda: leader.reset([1])):
        with pytest.raises(DatabaseUnavailable):
            call()
    leader.open(uuid.uuid4())
    assert ids(leader.fetch(1)) == [1]


def test_a_row_that_commits_late_comes_before_its_successor(outbox, leader):
    """I4: a marked row says nothing about lower ids; a mark that began behind the last one would lose this."""
    outbox.insert(row(6, "b"), row(7, "c"))
    assert ids(leader.fetch(2)) == [6, 7]
    outbox.insert(row(5, "a"), row(9, "a"))
    assert ids(leader.fetch(2)) == [5, 9]


def parked(outbox):
    """Return what is parked: id, and whether it is held."""
    if isinstance(outbox, FakeOutbox):
        return {record_id: held for record_id, (_, _, held) in outbox.parked.items()}
    return dict(outbox.connection.execute("SELECT id, held FROM outbox_parked ORDER BY id").fetchall())


def test_a_record_is_parked_with_what_is_behind_it(outbox, leader):
    outbox.insert(row(1, "a"), row(2, "b"), row(3, "a"), row(4, "c"))
    leader.fetch(10)
    assert leader.park({1: "too large"}, [3]) == frozenset()
    assert parked(outbox) == {1: False, 3: True}
    assert set(outbox.leaders()) == {2, 4}
    outbox.insert(row(5, "a"))
    leader.open(uuid.uuid4())
    batch = leader.fetch(10)
    assert ids(batch) == [2, 4, 5]
    assert batch.parked == {("t", "a"): 1}, "so 5 is to be held"
    outbox.insert(row(6, "b"))
    assert leader.fetch(10).parked == {}, "of the keys of the batch only"


def test_nothing_is_held_behind_a_key_that_was_released(outbox, leader):
    """Nor before the record of its key that is parked."""
    outbox.insert(row(1, "a"), row(2, "b"), row(5, "b"), row(7, "b"))
    leader.fetch(10)
    assert leader.park({5: "bad"}, [1, 2, 7]) == {1, 2}
    assert parked(outbox) == {5: False, 7: True}


def test_a_key_is_held_in_its_topic_alone(outbox, leader):
    """A record that can never be sent holds back nothing of a topic that its writer may not write to."""
    outbox.insert(row(1, "a"), row(2, "a", topic="other"), row(3, "a"))
    leader.fetch(10)
    assert leader.park({1: "bad"}, [2, 3]) == {2}
    assert parked(outbox) == {1: False, 3: True}
    outbox.insert(row(4, "a", topic="other"), row(5, "a"))
    leader.open(uuid.uuid4())
    batch = leader.fetch(10)
    assert {each for each in batch.parked if each in {("t", "a"), ("other", "a")}} == {("t", "a")}


def test_a_fenced_leader_parks_nothing_of_its_successors(outbox, leader):
    """I6."""
    outbox.insert(row(1, "a"), row(2, "a"))
    leader.fetch(10)
    successor = outbox.source()
    successor.open(uuid.uuid4())
    successor.fetch(10)
    assert leader.park({1: "bad"}, [2]) == {2}
    assert parked(outbox) == {}
    successor.close()


def test_a_purge_and_the_mark_after_it_are_one(outbox, leader):
    outbox.insert(*[row(n, "k") for n in range(1, 6)])
    first = leader.fetch(2)
    assert ids(leader.fetch(2, ids(first))) == [3, 4]
    assert set(outbox.leaders()) == {3, 4, 5}


def test_what_was_marked_under_an_earlier_leader_id_of_ours_can_be_given_back(outbox, leader):
    """I9: an end may come between a new leader id and the mark under it."""
    outbox.insert(row(1, "k"), row(2, "k"))
    leader.fetch(10)
    leader.open(uuid.uuid4())
    leader.reset([1, 2])
    assert outbox.leaders() == {1: None, 2: None}


def test_no_key_is_released_between_a_mark_and_the_look_at_what_is_parked(dsn):
    """The record that was marked would be sent, and those that come back behind it."""
    real = RealOutbox(dsn)
    source = real.source()
    source.open(uuid.uuid4())
    real.insert(row(1, "a"), row(2, "b"))
    source.fetch(10)
    source.park({1: "bad"})
    real.insert(row(7, "a"))
    parking, retried = source._parking, threading.Event()
    read = parking.first_of_keys
    observer = psycopg.connect(dsn, autocommit=True)

    def retry():
        with psycopg.connect(dsn) as operator:
            ParkedRecords(OutboxTable.parse("outbox")).retry(operator, ParkedSelection())
        retried.set()

    person = threading.Thread(target=retry)

    def retry_then_look(connection, keys):
        person.start()
        waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        eventually(lambda: retried.is_set() or observer.execute(waits).fetchone(), "the operator waits for the mark")
        return read(connection, keys)

    parking.first_of_keys = retry_then_look
    batch = source.fetch(10)
    assert ids(batch) == [7]
    assert batch.parked == {("t", "a"): 1}
    person.join(60)
    assert retried.is_set(), "afterwards it is"
    parking.first_of_keys = read
    assert ids(source.fetch(10)) == [1]
    source.close()
    observer.close()
    real.connection.close()
