"""A record is sent once by a leader whose marks another one has taken over."""

import pytest
from support.fakes import FakeSource, FakeTable

from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.source import MarkPages

pytestmark = pytest.mark.quick


def send(pages, rows):
    """Send rows; return their ids."""
    pages.sent(rows)
    return [row[0] for row in rows]


def test_a_zombie_that_marks_has_nothing_sent_twice():
    table = FakeTable()
    table.insert(*((each, "t", "k", "v", [], []) for each in range(1, 9)))
    zombie, leader = MarkPages(FakeSource(table)), MarkPages(FakeSource(table))
    zombie.open(None)
    leader.open(None)
    sent = send(leader, leader.read(4).rows)
    zombie.read(8)  # in the middle of the leader's batch, as one that was frozen would
    for _ in range(4):
        if (page := leader.read(4)) is not None:
            sent += send(leader, page.rows)
    assert sent == [*range(1, 9)]
    leader.committed()
    zombie.close()
    leader.close()
    assert not table.rows


def filled(records):
    table = FakeTable()
    table.insert(*((each, "t", "k", "v", [], []) for each in range(1, records + 1)))
    return table


def test_what_was_deferred_is_not_purged_before_it_is_sent():
    table = filled(8)
    leader = MarkPages(FakeSource(table))
    leader.open(None)
    rows = leader.read(8).rows
    send(leader, rows[:6])
    leader.committed()
    leader.read(8)  # was asked for before
    leader.read(8)
    assert [*table.rows] == [7, 8]
    send(leader, rows[6:])
    leader.committed()
    leader.close()
    assert not table.rows


def test_whoever_goes_on_sends_what_was_deferred():
    table = filled(8)
    leader = MarkPages(FakeSource(table))
    leader.open(None)
    position = {**leader.read(8).position, "deferred": [7, 8]}
    successor = MarkPages(FakeSource(table))
    successor.open(position)
    assert [row[0] for row in successor.read(8).rows] == [7, 8]
    leader.close()
    successor.close()


def test_whoever_goes_on_repeats_nothing_of_a_batch_whose_purge_was_not_asked_for_yet():
    """The second page was marked ahead, before the first one was committed: only the position knows of the first."""
    table = filled(3)
    leader = MarkPages(FakeSource(table))
    leader.open(None)
    sent = send(leader, leader.read(2).rows)
    leader.committed()
    page = leader.read(2)
    sent += send(leader, page.rows)
    leader.committed()
    successor = MarkPages(FakeSource(table))  # the leader is frozen
    successor.open(page.position)
    assert successor.read(2) is None
    assert sent == [1, 2, 3]
    leader.close()
    successor.close()


def test_what_was_parked_is_not_purged_once_people_have_put_it_back():
    """The successor goes on from a position that was kept meanwhile: it was never sent."""
    table = filled(4)
    leader = MarkPages(FakeSource(table))
    leader.open(None)
    leader.read(8)
    assert leader.park({2: "bad"}, [3]) == frozenset()
    position = leader.position()
    leader.close()
    table.retry("k")
    successor = MarkPages(FakeSource(table))
    successor.open(position)
    assert [row[0] for row in successor.read(8).rows] == [2, 3]
    successor.close()


def test_a_purge_that_failed_with_its_connection_is_repeated_before_anything_is_marked(monkeypatch):
    """Without ids in the position, which at least once it has not."""
    table = filled(4)
    source = FakeSource(table)
    leader = MarkPages(source, names_ids=False)
    leader.open(None)
    assert send(leader, leader.read(2).rows) == [1, 2]
    leader.committed()
    fetch, calls = source.fetch, []

    def lost(limit, delivered=()):
        calls.append((limit, list(delivered)))
        if len(calls) < 4:
            raise DatabaseUnavailable("lost", next_step="none")
        return fetch(limit, delivered)

    monkeypatch.setattr(source, "fetch", lost)
    with pytest.raises(DatabaseUnavailable):
        leader.purge()
    leader.close()
    with pytest.raises(DatabaseUnavailable):
        leader.open(None)
    leader.open(None)
    assert [*table.rows] == [3, 4]
    assert send(leader, leader.read(4).rows) == [3, 4]
    leader.committed()
    leader.close()
    assert not table.rows


def test_what_was_marked_and_not_delivered_is_given_back_at_least_once():
    """Prefetched records too. Exactly once a successor purges what a position has passed, which has to be marked."""
    for names_ids, unmarked in [(False, {3, 4, 5, 6, 7, 8}), (True, set())]:
        table = filled(8)
        leader = MarkPages(FakeSource(table), names_ids=names_ids)
        leader.open(None)
        rows = leader.read(4).rows  # the next four are being marked
        send(leader, rows[:2])
        leader.committed()
        leader.close()
        assert {each for each, (_, leader_id) in table.rows.items() if leader_id is None} == unmarked
