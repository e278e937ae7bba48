"""A record is sent once by a leader whose marks another one has taken over."""

import threading
from uuid import uuid4

import pytest
from support.fakes import FakeSource, FakeTable

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.harvester.assembly.factory import make_purging_pages
from harvest_lib.leadership import Term, TermEnd
from harvest_lib.source import ClaimedRows, MarkPages, mark_batches

pytestmark = pytest.mark.quick


def send(pages, rows):
    """Send rows; return their ids."""
    pages.sent(rows)
    return [row[0] for row in rows]


def test_a_zombie_that_marks_has_nothing_sent_twice():
    table, _, zombie = opened(8)
    leader = MarkPages(FakeSource(table))
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


def unmark(table):
    """Unmark all rows, as goharvest does that was fenced: it resets by id alone."""
    for entry in table.rows.values():
        entry[1] = None


def marked_twice(records):
    """Return a table, its leader, and the rows of its first page: one was purged, and the next page has the others."""
    table, _, leader = opened(records)
    rows = leader.read(records).rows
    send(leader, rows[:1])
    leader.committed()
    unmark(table)
    leader.purge()  # with which the next page is marked
    return table, leader, rows


def test_what_was_purged_since_it_was_marked_once_more_is_not_sent_twice():
    """The next page was marked ahead, and may be read after several batches of deferred rows."""
    table, leader, rows = marked_twice(4)
    for row in rows[1:3]:
        send(leader, [row])
        leader.committed()
        leader.purge()
    table.insert((5, "t", "k", "v", [], []))
    found = []
    for _ in range(4):  # the first may have been marked before the last row was there
        if (page := leader.read(4)) is not None:
            found += page.rows
    assert [row[0] for row in found] == [5]
    send(leader, [rows[3], *found])
    leader.committed()
    leader.close()
    assert not table.rows


def test_what_was_parked_since_it_was_marked_once_more_is_not_sent():
    table, leader, _ = marked_twice(3)
    leader.park({2: "bad"}, [])
    assert leader.read(3) is None
    table.retry("k")
    assert [row[0] for row in leader.read(3).rows] == [2], "somebody has put it back"
    leader.close()


def filled(records):
    table = FakeTable()
    table.insert(*((each, "t", "k", "v", [], []) for each in range(1, records + 1)))
    return table


def opened(records, **settings):
    """Return a table with so many records, a source of it, and pages that a leader has opened."""
    table = filled(records)
    source = FakeSource(table)
    leader = MarkPages(source, **settings)
    leader.open(None)
    return table, source, leader


def test_what_was_deferred_is_not_purged_before_it_is_sent():
    table, _, leader = opened(8)
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
    table, _, leader = opened(8)
    position = {**leader.read(8).position, "deferred": [7, 8]}
    successor = MarkPages(FakeSource(table))
    successor.open(position)
    assert [row[0] for row in successor.read(8).rows] == [7, 8]
    leader.close()
    successor.close()


def test_whoever_goes_on_repeats_nothing_of_a_batch_whose_purge_was_not_asked_for_yet():
    """The second page was marked ahead, before the first one was committed: only the position knows of the first."""
    table, _, leader = opened(3)
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
    table, _, leader = opened(4)
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
    table, source, leader = opened(4, names_ids=False)
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
        table, _, leader = opened(8, names_ids=names_ids)
        rows = leader.read(4).rows  # the next four are being marked
        send(leader, rows[:2])
        leader.committed()
        leader.give_back()
        leader.close()
        assert {each for each, (_, leader_id) in table.rows.items() if leader_id is None} == unmarked


@pytest.mark.parametrize("outages", [0, 1])
def test_rows_of_an_earlier_connection_are_given_back_too(outages):
    """And those whose purge was lost with the connection are purged."""
    table, source, leader = opened(8, names_ids=False)
    leader.read(4)
    leader.open(None)
    send(leader, leader.read(2).rows)
    leader.committed()
    source.outages = outages
    leader.give_back()
    leader.close()
    assert table.ids == [3, 4, 5, 6, 7, 8]
    assert set(table.leaders().values()) == {None}


def test_a_leader_marks_nothing_once_its_term_is_over():
    """Another may lead by now, whose rows it would take."""
    table, term = filled(4), Term(uuid4())
    leader = make_purging_pages(HarvestConfig(leadership="solo"), FakeSource(table), term)
    leader.open(None)
    term.end(TermEnd.REVOKED)
    assert leader.read(2) is None
    leader.close()
    assert set(table.leaders().values()) == {None}


@pytest.mark.parametrize("how", [TermEnd.REVOKED, TermEnd.FENCED])
@pytest.mark.parametrize("delivery", ["barrier", "pipelined"])
def test_a_leader_that_was_fenced_purges_only_under_the_barrier(delivery, how):
    """Pipelined, its successor may have sent the first of these again: it has to send them all."""
    table, term = filled(4), Term(uuid4())
    leader = make_purging_pages(HarvestConfig(delivery=delivery, leadership="solo"), FakeSource(table), term)
    leader.open(None)
    assert send(leader, leader.read(2).rows) == [1, 2]
    leader.committed()
    term.end(how)
    leader.purge()
    leader.close()
    assert table.ids == ([1, 2, 3, 4] if (delivery, how) == ("pipelined", TermEnd.FENCED) else [3, 4])


@pytest.mark.parametrize("ending", ["open", "give_back", "close"])
def test_so_does_one_that_opens_again_or_ends(ending):
    table, term = filled(4), Term(uuid4())
    leader = make_purging_pages(HarvestConfig(delivery="pipelined", leadership="solo"), FakeSource(table), term)
    leader.open(None)
    assert send(leader, leader.read(2).rows) == [1, 2]
    leader.committed()
    term.end(TermEnd.FENCED)
    getattr(leader, ending)(*[None] * (ending == "open"))
    assert table.ids == [1, 2, 3, 4]
    leader.close()


def test_a_page_of_nothing_but_records_that_are_held_does_not_look_like_the_end():
    table, _, leader = opened(8)
    assert [each[0] for each in leader.read(4).rows] == [1, 2, 3, 4]  # and the next four are being marked
    leader._pending.result()
    for each in (1, 2, 3, 4):
        table.rows[each][1] = uuid4()  # a zombie has marked them
    assert [each[0] for each in leader.read(4).rows] == [5, 6, 7, 8]
    assert leader.read(4) is None
    leader.close()


def test_however_many_pages_of_held_records_come_the_next_others_are_found():
    """A zombie marks them again and again, in small pages: that costs no depth."""
    table, source, leader = opened(4)
    fetch, left = source.fetch, [3_000]
    held = list(leader.read(2).rows)

    def fetch_held(limit, delivered=()):
        if not limit or not left[0]:
            return fetch(limit, delivered)
        left[0] -= 1
        return ClaimedRows(held, {}, more=True)

    leader._pending.result()
    leader._pending = None
    table.rows[3][1] = table.rows[4][1] = None
    source.fetch = fetch_held
    assert [each[0] for each in leader.read(2).rows] == [3, 4]
    assert left == [0]
    leader.close()


def test_an_end_waits_for_a_statement_that_hangs_only_for_a_while_and_the_next_opening_for_all_of_it(monkeypatch):
    """The source is used by one thread at a time."""
    monkeypatch.setattr(mark_batches, "_LAST_ANSWER_SECONDS", 0.01)
    hanging, asked = threading.Event(), threading.Event()
    table, source, leader = opened(8, names_ids=False)
    fetch = source.fetch

    def hang(limit, delivered=()):
        asked.set()
        assert hanging.wait(60)
        return fetch(limit, delivered)

    monkeypatch.setattr(source, "fetch", hang)
    leader._request(4)
    assert asked.wait(60)
    leader.give_back()
    leader.close()
    assert "close" not in source.calls, "it is in use"
    opening = threading.Thread(target=leader.open, args=(None,))
    opening.start()
    assert source.calls.count("open") == 1
    hanging.set()
    opening.join(60)
    assert not opening.is_alive()
    assert source.calls == ["open", "fetch", "reset", "close", "open"]
    assert set(table.leaders().values()) == {None}, "it was given back once it could be"
    leader.close()
