"""A term's lease, by a clock that is passed in."""

import math
import threading
import uuid

import pytest

from harvest_lib.errors import LifecycleError
from harvest_lib.leadership import Term, TermEnd
from harvest_lib.leadership.term_registry import ElectedLeadership

pytestmark = pytest.mark.quick


def leased(clock, seconds):
    return Term(uuid.uuid4(), lease_until=clock.now + seconds, clock=clock)


def test_a_term_without_a_lease_is_live_until_it_is_ended(clock):
    term = Term(uuid.uuid4(), clock=clock)
    clock.now = math.inf
    assert not term.is_live(), "only the end of time fences it"
    clock.now = 1e12
    assert term.is_live()
    assert term.ended is None
    term.end(TermEnd.REVOKED)
    assert not term.is_live()
    assert term.ended is TermEnd.REVOKED


def test_a_lease_holds_up_to_its_end_and_not_at_it(clock):
    term = leased(clock, 2.0)
    clock.now += 1.999
    assert (term.is_live(), term.ended) == (True, None)
    clock.now = 102.0
    assert (term.is_live(), term.ended) == (False, TermEnd.FENCED)


def test_a_lease_can_be_extended_while_it_holds(clock):
    term = leased(clock, 2.0)
    clock.now += 1.0
    term.extend(clock.now + 2.0)
    clock.now += 1.5
    assert term.is_live()
    clock.now += 0.5
    assert not term.is_live()


def test_an_extension_never_shortens_a_lease(clock):
    term = leased(clock, 5.0)
    term.extend(clock.now + 1.0)
    clock.now += 4.0
    assert term.is_live()


def test_a_lease_that_ran_out_is_never_revived(clock):
    """I6. A process that thaws must not go on because a late proof of its leadership arrives."""
    term = leased(clock, 1.0)
    clock.now += 2.0
    term.extend(clock.now + 60.0)
    assert not term.is_live()
    assert term.ended is TermEnd.FENCED


@pytest.mark.parametrize("how", list(TermEnd))
def test_an_ended_term_is_never_revived(clock, how):
    term = leased(clock, 1.0)
    term.end(how)
    term.extend(clock.now + 60.0)
    assert not term.is_live()


@pytest.mark.parametrize(("first", "second"), [tuple(TermEnd), tuple(reversed(TermEnd))])
def test_the_first_reason_stays(clock, first, second):
    term = leased(clock, 1.0)
    term.end(first)
    term.end(second)
    clock.now += 60.0
    assert term.ended is first


def test_a_term_nobody_has_acted_on_is_quiesced(clock):
    term = leased(clock, 1.0)
    term.end(TermEnd.REVOKED)
    assert term.quiesced.is_set()


def test_an_election_that_does_not_end_in_time_is_logged(caplog):
    leadership, over = ElectedLeadership(), threading.Event()
    leadership._elect(over.wait, "election", LifecycleError("it ended", next_step="none"))
    leadership.stop(0.0)
    over.set()
    assert [each.message for each in caplog.records] == ["leadership_release_timed_out"]
