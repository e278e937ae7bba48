"""The wait of a process that was fenced before it leads again."""

import uuid

import pytest
from support.clock import Clock

from harvest_lib.harvester.hold_off import HoldOffs
from harvest_lib.leadership import Term

pytestmark = pytest.mark.quick

SECONDS = 10.0


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hold_offs(clock):
    return HoldOffs(SECONDS, clock)


def term(after_epoch=5, *, fences=True, shard=0):
    return Term(uuid.uuid4(), shard=shard, after_epoch=after_epoch, fences=fences)


def test_nobody_holds_off_without_a_reason(hold_offs):
    hold_offs.begin(1, 5)
    assert hold_offs.is_over(term(fences=False)), "another shard's"
    assert not hold_offs.is_over(term(fences=False, shard=1))


def test_what_is_on_the_wire_is_waited_for_where_nothing_fences_it(hold_offs, clock):
    hold_offs.begin(0, 4)
    assert not hold_offs.is_over(term(fences=False)), "though another has led since"
    assert not hold_offs.is_over(term(after_epoch=None, fences=False)), "nor where the election knows of no epochs"
    clock.now += SECONDS
    assert hold_offs.is_over(term(fences=False))


def test_a_marked_table_has_no_epoch(hold_offs):
    for _ in range(3):
        hold_offs.begin(0, None)
    assert not hold_offs.is_over(term(after_epoch=None))


def test_who_was_fenced_goes_on_twice_and_holds_off_the_third_time(hold_offs, clock):
    """By a producer that does not lead: nobody has raised the epoch."""
    for _ in range(2):
        hold_offs.begin(0, 5)
        assert hold_offs.is_over(term(after_epoch=5))
        clock.now += SECONDS - 0.1
    hold_offs.begin(0, 5)
    assert not hold_offs.is_over(term(after_epoch=5))
    clock.now += SECONDS
    assert hold_offs.is_over(term(after_epoch=5))
    hold_offs.begin(0, 5)
    assert hold_offs.is_over(term(after_epoch=5)), "it has held off since"


def test_who_was_fenced_by_its_successor_may_succeed_it_at_any_time(hold_offs):
    for _ in range(3):
        hold_offs.begin(0, 5)
    assert not hold_offs.is_over(term(after_epoch=5))
    assert hold_offs.is_over(term(after_epoch=6))
    hold_offs.begin(0, -1)  # it did not come to lead, as another had raised the epoch
    assert hold_offs.is_over(term(after_epoch=0))
