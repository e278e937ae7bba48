"""The promises of every leader election: a fake, Solo, NELI on a real broker, a lock in a real Postgres."""

import threading
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.fakes import FakeLeadership
from support.waiting import eventually

from harvest_lib.leadership import Neli, PostgresLeadership, Solo, Term, TermEnd
from harvest_lib.leadership.last_leaders import LastLeaders
from harvest_lib.leadership.neli_settings import NeliSettings
from harvest_lib.leadership.postgres import PostgresLeadershipSettings

pytestmark = pytest.mark.gate


def neli(request):
    group = request.getfixturevalue("group_id")
    settings = NeliSettings(
        topic=f"{group}.neli",
        group_id=group,
        heartbeat_timeout_seconds=60.0,  # no term ends because the machine stood still
        session_timeout_seconds=120.0,
        quiesce_timeout_seconds=0.0,
    )
    client = {"bootstrap.servers": request.getfixturevalue("bootstrap_servers")}
    return lambda shards: Neli(replace(settings, shards=shards), client)


def postgres(request):
    settings = PostgresLeadershipSettings(
        group=request.getfixturevalue("group_id"),
        heartbeat_timeout_seconds=60.0,
        session_timeout_seconds=120.0,
        quiesce_timeout_seconds=0.0,
    )
    dsn = request.getfixturevalue("dsn")
    nobody_led = SimpleNamespace(read=lambda _connection: LastLeaders(are_fenced=True))  # so nobody is waited for
    return lambda shards: PostgresLeadership(replace(settings, shards=shards), dsn, rows=nobody_led)


SHARDS = 3
KINDS = {"fake": lambda _: FakeLeadership, "solo": lambda _: Solo, "neli": neli, "postgres": postgres}


@pytest.fixture(params=KINDS)
def stand(request):
    """Make one more that may lead some shards, not started yet; all are stopped at the end."""
    made, kind = [], KINDS[request.param](request)

    def make(shards=1):
        made.append(kind(shards))
        return made[-1]

    yield make
    for one in made:
        one.stop(60)


@pytest.fixture
def waited(monkeypatch):
    """For how long this thread was made to wait, each time."""
    seconds, here, wait = [], threading.get_ident(), threading.Condition.wait

    def noted(condition, timeout=None):
        if timeout and threading.get_ident() == here:
            seconds.append(timeout)
        return wait(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", noted)
    return seconds


def started(leadership):
    leadership.start()
    return leadership


def leading(leadership, shards=SHARDS):
    """Wait until one leads as many shards; return its terms."""
    return eventually(lambda: len(terms := leadership.terms(1)) == shards and terms, f"it leads {shards} shards")


def test_there_is_no_term_before_the_start(stand, waited):
    leadership = stand()
    assert leadership.term(0) is None
    assert not waited
    assert leadership.term(0.1) is None
    assert waited[0] == 0.1, "as long as it was asked to"


def test_a_term_is_live_and_the_same_while_it_lasts(stand):
    leadership = started(stand())
    term = leadership.term(60)
    assert term is not None
    assert term.is_live()
    assert term.ended is None
    assert term.quiesced.is_set(), "nothing is in flight until a harvester begins to act"
    assert leadership.term(0) is term


def test_a_stop_ends_the_term(stand):
    leadership = started(stand())
    term = leadership.term(60)
    leadership.stop(60)
    assert not term.is_live()
    assert term.ended is TermEnd.REVOKED, "reported in time: what is in flight may land"
    assert leadership.term(0) is None


def test_a_stop_can_be_repeated_and_needs_no_start(stand):
    leadership = stand()
    leadership.stop(60)
    leadership = started(stand())
    term = leadership.term(60)
    leadership.stop(60)
    leadership.stop(60)
    assert term.ended is TermEnd.REVOKED
    assert leadership.term(0) is None


def test_a_stop_right_after_the_start_leaves_nobody_leading(stand):
    leadership = started(stand())
    leadership.stop(60)
    assert leadership.term(0) is None


def test_the_next_one_leads_under_another_id(stand):
    """I6: an id stands for one term, or a successor's rows could be taken for one's own."""
    seen = set()
    for number in range(1, 4):
        leadership = started(stand())
        seen.add(eventually(lambda one=leadership: one.term(1), "one leads").leader_id)
        assert len(seen) == number
        leadership.stop(60)


def test_one_that_is_alone_leads_every_shard_each_under_an_id_of_its_own(stand):
    leadership = started(stand(SHARDS))
    terms = leading(leadership)
    assert [term.shard for term in terms] == [0, 1, 2]
    assert len({term.leader_id for term in terms}) == SHARDS
    assert all(term.is_live() and term.quiesced.is_set() for term in terms)
    assert leadership.terms(0) == terms, "the same while they last"
    assert leadership.term(0) is terms[0]


def test_terms_are_waited_for_while_nothing_changes(stand, waited):
    leadership = stand(SHARDS)
    assert leadership.terms(0) == ()
    assert not waited
    assert leadership.terms(0.1) == ()
    assert waited[0] == 0.1, "as long as it was asked to"
    leadership = started(leadership)
    terms = leading(leadership)
    waited.clear()
    assert leadership.terms(0.1, terms) == terms
    assert waited[0] == 0.1, "what is known is no news"
    waited.clear()
    assert leadership.terms(60, terms[:2]) == leadership.terms(60, [*terms, Term(uuid.uuid4())]) == terms
    assert not waited, "what began is, and what ended"


def test_whoever_waits_hears_that_terms_have_ended(stand):
    leadership = started(stand(SHARDS))
    terms = leading(leadership)
    heard = []
    forever = 600  # so that it ends by the news alone
    waiting = threading.Thread(target=lambda: heard.append(leadership.terms(forever, terms)), daemon=True)
    waiting.start()
    leadership.stop(60)
    waiting.join(60)
    assert heard
    assert {term.shard for term in heard[0]} < {0, 1, 2}


def test_a_stop_ends_the_terms_of_all_shards(stand):
    leadership = started(stand(SHARDS))
    terms = leading(leadership)
    leadership.stop(60)
    assert {term.ended for term in terms} == {TermEnd.REVOKED}
    assert leadership.terms(0) == ()


def test_all_shards_go_to_the_next_one_under_other_ids(stand):
    seen = set()
    for number in range(1, 3):
        leadership = started(stand(SHARDS))
        seen |= {term.leader_id for term in leading(leadership)}
        assert len(seen) == number * SHARDS
        leadership.stop(60)
