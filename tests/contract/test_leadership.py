"""What every way of electing a leader promises: a fake, Solo, NELI on a real broker, a lock in a real Postgres."""

import time

import pytest
from support.fakes import FakeLeadership
from support.waiting import eventually

from harvest_lib.leadership import Neli, PostgresLeadership, Solo, TermEnd
from harvest_lib.leadership.neli import NeliSettings
from harvest_lib.leadership.postgres import PostgresLeadershipSettings


def neli(request):
    group = request.getfixturevalue("group_id")
    settings = NeliSettings(
        topic=f"{group}.neli",
        group_id=group,
        heartbeat_timeout_seconds=1.5,
        session_timeout_seconds=3.0,
        quiesce_timeout_seconds=0.0,
    )
    client = {"bootstrap.servers": request.getfixturevalue("bootstrap_servers")}
    return lambda: Neli(settings, client)


def postgres(request):
    settings = PostgresLeadershipSettings(
        group=request.getfixturevalue("group_id"),
        heartbeat_timeout_seconds=1.0,
        session_timeout_seconds=2.0,
        quiesce_timeout_seconds=0.0,
    )
    dsn = request.getfixturevalue("dsn")
    return lambda: PostgresLeadership(settings, dsn)


KINDS = {"fake": lambda _: FakeLeadership, "solo": lambda _: Solo, "neli": neli, "postgres": postgres}


@pytest.fixture(params=KINDS)
def stand(request):
    """Make one more that may lead, not started yet; all are stopped at the end."""
    made, kind = [], KINDS[request.param](request)

    def make():
        made.append(kind())
        return made[-1]

    yield make
    for one in made:
        one.stop(5)


def started(leadership):
    leadership.start()
    return leadership


def test_there_is_no_term_before_the_start(stand):
    leadership = stand()
    assert leadership.term(0) is None
    began = time.monotonic()
    assert leadership.term(0.1) is None
    assert 0.1 <= time.monotonic() - began < 5.0, "it waits as long as it was told"


def test_a_term_is_live_and_the_same_while_it_lasts(stand):
    leadership = started(stand())
    term = leadership.term(20)
    assert term is not None
    assert term.is_live()
    assert term.ended is None
    assert term.quiesced.is_set(), "nothing is in flight until a harvester begins to act"
    assert leadership.term(0) is term


def test_a_stop_ends_the_term(stand):
    leadership = started(stand())
    term = leadership.term(20)
    leadership.stop(5)
    assert not term.is_live()
    assert term.ended is TermEnd.REVOKED, "told in time: what is in flight may land"
    assert leadership.term(0) is None


def test_a_stop_can_be_repeated_and_needs_no_start(stand):
    leadership = stand()
    leadership.stop(5)
    leadership = started(stand())
    term = leadership.term(20)
    leadership.stop(5)
    leadership.stop(5)
    assert term.ended is TermEnd.REVOKED
    assert leadership.term(0) is None


def test_a_stop_right_after_the_start_leaves_nobody_leading(stand):
    leadership = started(stand())
    leadership.stop(10)
    assert leadership.term(0.2) is None


def test_the_next_one_leads_under_another_id(stand):
    """I6: an id stands for one term, or a successor's rows could be taken for one's own."""
    seen = set()
    for number in range(1, 4):
        leadership = started(stand())
        seen.add(eventually(lambda one=leadership: one.term(1), 20, "one leads").leader_id)
        assert len(seen) == number
        leadership.stop(5)
