"""Records of a marked table that can never be sent, and later ones of their keys: what is moved, and what may go."""

from types import SimpleNamespace

import pytest
from support.batches import FakeTopics
from support.rows import row

from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.errors import RecordError

pytestmark = pytest.mark.quick


class Pages:
    """`MarkPages` as far as parking knows it: `parked` came with the page, `moved` are what was parked since."""

    def __init__(self, parked=None):
        self.parked, self.moved, self.released = parked or {}, [], frozenset()

    def park(self, refused, behind):
        self.moved.append((dict(refused), list(behind)))
        return self.released


def made(policy="hold_key", parked=None, **bad):
    topics, pages = FakeTopics(), Pages(parked)
    topics.bad = {int(name[1:]): reason for name, reason in bad.items()}
    return MarkedParking(policy, topics, pages), pages


def ids(rows):
    return [each[0] for each in rows]


def test_what_is_refused_holds_its_key_in_its_topic():
    parking, pages = made(_2="too large")
    rows = [row(1, "a"), row(2, "a"), row(3, "b"), row(4, "a"), row(5, "a", topic="other")]
    assert ids(parking.filter(rows)) == [1, 3, 5]
    assert pages.moved == [({2: "too large"}, [4])]


def test_later_pages_stay_behind_it_until_the_source_is_opened_again():
    parking, pages = made(_1="too large")
    parking.filter([row(1, "a")])
    assert ids(parking.filter([row(2, "a"), row(3, "b")])) == [3]
    assert pages.moved[1:] == [({}, [2])]
    parking.begin()
    assert ids(parking.filter([row(4, "a")])) == [4], "the table says what is parked"


def test_the_table_says_what_is_parked_and_a_record_before_it_may_be_refused_too():
    parking, pages = made(parked={("t", "a"): 10}, _5="too large")
    rows = [row(4, "a"), row(5, "a"), row(7, "a"), row(11, "a")]
    assert ids(parking.filter(rows)) == [4]
    assert pages.moved == [({5: "too large"}, [7, 11])]


def test_under_skip_the_key_goes_on():
    parking, pages = made("skip", {("t", "a"): 1}, _2="too large")
    assert ids(parking.filter([row(2, "a"), row(3, "a")])) == [3]
    assert pages.moved == [({2: "too large"}, [])]


def test_under_stop_nothing_is_moved():
    parking, pages = made("stop", _2="too large")
    with pytest.raises(RecordError, match="record 2 "):
        parking.filter([row(1, "a"), row(2, "a")])
    with pytest.raises(RecordError, match="record 3 "):
        parking.park(row(3, "a"), "too large")
    assert pages.moved == []


def test_a_key_that_was_released_meanwhile_is_marked_again():
    parking, pages = made(parked={("t", "a"): 1})
    pages.released = frozenset({2})
    assert parking.filter([row(2, "a")]) == []
    assert parking.is_stale
    parking.begin()
    assert not parking.is_stale


def test_nothing_is_looked_at_while_nothing_is_parked():
    parking, _ = made()
    rows = SimpleNamespace()
    parking._topics.refused = lambda *_: {}
    assert parking.filter(rows) is rows
