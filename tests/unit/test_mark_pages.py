"""A record is sent once by a leader whose marks another one has taken over."""

from support.fakes import FakeSource, FakeTable

from harvest_lib.source import MarkPages


def test_a_zombie_that_marks_has_nothing_sent_twice():
    table = FakeTable()
    table.insert(*((each, "t", "k", "v", [], []) for each in range(1, 9)))
    zombie, leader = MarkPages(FakeSource(table)), MarkPages(FakeSource(table))
    zombie.open(None)
    leader.open(None)
    sent = [row[0] for row in leader.read(4).rows]
    zombie.read(8)  # in the middle of the leader's lap, as one that was frozen would
    for _ in range(4):
        if (page := leader.read(4)) is not None:
            sent += [row[0] for row in page.rows]
    assert sent == [*range(1, 9)]
    leader.committed()
    zombie.close()
    leader.close()
    assert not table.rows
