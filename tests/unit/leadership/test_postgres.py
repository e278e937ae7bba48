"""The election by a lock, on a scripted server and a clock that only tests move: the waits, and how long they are."""

import threading
from functools import partial

import pytest
from support.waiting import eventually

from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.leadership import PostgresLeadership, TermEnd
from harvest_lib.leadership.last_leaders import LastLeaders
from harvest_lib.leadership.lock_session import LockObservation
from harvest_lib.leadership.postgres import PostgresLeadershipSettings

pytestmark = pytest.mark.gate

HEARTBEAT = 1.0
SESSION = 2.0
ROWS = object()
"""Those of the subscription; `Server.last_leaders` is what is read there."""


class Server:
    """Holds the two locks of one group; sessions of it stand for `LockSession`. Hooks run before an answer is sent."""

    def __init__(self):
        self.lead = None
        self.left = None
        self.looks = 0
        self.before_lock = self.before_look = self.in_word = lambda: None
        self.words = 0
        self.last_leaders = LastLeaders()
        self.others_stand = False

    def session(self, _conninfo, _group, *, idle_timeout_seconds, outbox):
        assert outbox == ""
        assert idle_timeout_seconds >= HEARTBEAT
        return Session(self)

    def cut(self):
        """Lose the session that has the lock, as a restart would."""
        self.lead.cut = True
        self.lead = None


class Session:
    def __init__(self, server):
        self.server = server
        self.cut = False

    def try_lock(self):
        self._ask()
        free = self.server.lead is None
        if free:
            self.server.lead = self
            self.server.before_lock()
        return free

    def look(self):
        self._ask()
        self.server.looks += 1
        sight = LockObservation(
            held=self.server.lead is self,
            left_in_order=self.server.left is not None,
            others_stand=self.server.others_stand,
        )
        self.server.before_look()
        self._ask()
        return sight

    def last_leaders(self, rows):
        assert rows is ROWS
        self._ask()
        return self.server.last_leaders

    def leave(self, seconds):
        self._ask()
        assert seconds > 0
        self.server.words += 1
        self.server.lead, self.server.left = None, self
        self.server.in_word()
        self.server.left = None

    def close(self):
        if self.server.lead is self:
            self.server.lead = None

    def _ask(self):
        if self.cut:
            raise DatabaseUnavailable("Postgres does not answer", evidence="injected", next_step="none")


@pytest.fixture
def server(monkeypatch):
    made = Server()
    monkeypatch.setattr("harvest_lib.leadership.postgres.LockSession", made.session)
    return made


@pytest.fixture
def join(server, clock):
    """Start one more member; all are stopped at the end."""
    members = []

    def make(rows=None, kafka_silent_seconds=lambda: 0.0, **settings):
        chosen = {
            "group": "pool",
            "heartbeat_timeout_seconds": HEARTBEAT,
            "min_poll_interval_seconds": 0.005,
            "session_timeout_seconds": SESSION,
            "quiesce_timeout_seconds": 0.0,
            "io_error_backoff_seconds": 0.01,
            **settings,
        }
        member = PostgresLeadership(
            PostgresLeadershipSettings(**chosen), "host=unused", clock, rows, kafka_silent_seconds
        )
        members.append(member)
        member.start()
        return member

    yield make
    for member in members:
        member.stop(60)


@pytest.fixture
def lead(join, server, clock):
    """Start one and let it wait as long as it has to; return it and its term."""

    def make(**settings):
        member = join(**settings)
        looked(server)
        clock.now += SESSION
        term = member.term(60)
        assert term is not None
        return member, term

    return make


def looked(server):
    """Wait until the server was asked, and the answer to the question before was dealt with."""
    before = server.looks
    eventually(lambda: server.looks >= before + 2, "it looks")


def once(server, hook):
    """Have `hook` called before the next answer alone."""

    def call():
        server.before_look = lambda: None
        hook()

    server.before_look = call


def advance(clock, seconds):
    clock.now += seconds


def waits(member, server, clock):
    """Let the session timeout pass, and see that the member does not begin before."""
    looked(server)
    clock.now += SESSION - 0.01
    looked(server)
    assert member.term(0) is None
    clock.now += 0.01


def test_a_new_holder_waits_for_the_session_timeout(join, server, clock):
    member = join()
    waits(member, server, clock)
    assert member.term(60) is not None


def test_a_new_holder_begins_at_once_where_it_fences_the_one_before(join, server):
    """The clock stands still."""
    server.last_leaders = LastLeaders(epochs={0: 7, 1: 9}, are_fenced=True)
    member = join(rows=ROWS, shards=2)
    eventually(lambda: len(member.terms(0)) == 2, "it leads")
    assert [term.after_epoch for term in member.terms(0)] == [7, 9]


def test_a_new_holder_waits_where_it_does_not_fence_the_one_before(join, server, clock):
    server.last_leaders = LastLeaders(epochs={0: 7})
    member = join(rows=ROWS)
    looked(server)
    clock.now += SESSION - 0.01
    looked(server)
    assert member.term(0) is None
    server.last_leaders = LastLeaders(epochs={0: 8})
    clock.now += 0.01
    assert member.term(60).after_epoch == 8, "as it was when the term was granted"


def test_a_holder_whose_term_was_fenced_waits_if_another_has_led_meanwhile(join, server, clock):
    """Its own term did not begin: another, which nothing fences, came to the row first."""
    server.last_leaders = LastLeaders(epochs={0: 7}, are_fenced=True)
    member = join(rows=ROWS)
    term = member.term(60)
    server.last_leaders = LastLeaders(epochs={0: 8})
    term.end(TermEnd.FENCED)
    eventually(lambda: member.term(0) is None, "it is over")
    waits(member, server, clock)
    assert member.term(60).after_epoch == 8


def test_who_may_begin_at_once_does_not_while_the_word_stands(join, server):
    """Another could take that word for ours later on."""
    server.last_leaders = LastLeaders(epochs={0: 7}, are_fenced=True)
    server.left = object()
    member = join(rows=ROWS)
    looked(server)
    assert member.term(0) is None
    server.left = None
    assert member.term(60) is not None


def test_the_wait_counts_from_the_answer(join, server, clock):
    """The lock may have been freed as late as that."""
    server.before_lock = partial(advance, clock, 0.5)
    member = join()
    looked(server)
    assert clock.now == 100.5
    waits(member, server, clock)


def test_a_lease_counts_from_the_question(lead, server, clock):
    """The session may have been lost, and the lock be another's, right after the server answered."""
    _, term = lead()
    silent = threading.Event()

    def answer_late():
        clock.now += 0.7
        server.before_look = lambda: silent.wait(60)  # and never again

    looks = server.looks
    once(server, answer_late)
    try:
        eventually(lambda: server.looks >= looks + 2, "it has the late answer, and asks again")
        assert term.is_live()
        clock.now += HEARTBEAT - 0.7 - 0.01
        assert term.is_live()
        clock.now += 0.01
        assert term.ended is TermEnd.FENCED
    finally:
        server.before_look = lambda: None
        silent.set()


def test_an_answer_that_comes_too_late_begins_no_term(join, server, clock):
    """Had one begun, it would have been fenced, and in doubt: there would be no word."""
    member = join()
    looked(server)

    def late_twice():
        clock.now += SESSION
        once(server, partial(advance, clock, HEARTBEAT))

    once(server, late_twice)
    eventually(lambda: member.term(0), "the third answer was in time")
    assert clock.now == 100.0 + SESSION + HEARTBEAT
    member.stop(60)
    assert server.words == 1


@pytest.mark.parametrize("lose", [Server.cut, lambda server: setattr(server, "lead", None)], ids=["session", "lock"])
def test_a_lost_session_or_lock_ends_the_term_at_once(lead, server, lose):
    """The clock stands still here: the lease is not over."""
    _, term = lead()
    lose(server)
    eventually(lambda: term.ended is TermEnd.FENCED, "fenced")


class Silence:
    """A member's knowledge of Kafka: `since` is when it answered last, None while it answers."""

    def __init__(self, clock):
        self.clock = clock
        self.since = None
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return 0.0 if self.since is None else self.clock() - self.since


def pass_by(server, clock, seconds):
    """Let time pass in steps that no lease outlives."""
    for _ in range(round(seconds / 0.5)):
        clock.now += 0.5
        looked(server)


def test_a_leader_that_kafka_does_not_answer_lets_another_lead(lead, server, clock):
    silence = Silence(clock)
    member, term = lead(kafka_silent_seconds=silence)
    pass_by(server, clock, SESSION)
    silence.since, server.others_stand = clock.now, True
    pass_by(server, clock, SESSION - 0.5)
    assert term.is_live(), "not yet"
    clock.now += 0.5
    eventually(lambda: server.lead is None, "it has let go of the lock")
    assert term.ended is TermEnd.REVOKED
    assert server.words == 1, "nobody has to wait"
    assert "Kafka has not answered" in member.trouble
    asked = silence.asked
    eventually(lambda: silence.asked > asked + 3, "it looks whether Kafka answers")
    assert server.lead is None, "and does not stand before it does"
    silence.since = None
    eventually(lambda: server.lead is not None, "it stands again")
    looked(server)
    assert member.trouble == ""


def test_a_leader_that_kafka_does_not_answer_stays_while_nobody_else_stands(lead, server, clock):
    silence = Silence(clock)
    _, term = lead(kafka_silent_seconds=silence)
    silence.since = clock.now
    pass_by(server, clock, 3 * SESSION)
    assert term.is_live()


def test_who_gets_the_lock_has_a_session_timeout_to_reach_kafka(join, server, clock):
    """It may not have asked for long: the one before it was no better off."""
    silence = Silence(clock)
    silence.since, server.others_stand = clock.now - 100, True
    join(kafka_silent_seconds=silence)
    pass_by(server, clock, SESSION - 0.5)
    assert server.lead is not None


def test_who_takes_the_lock_after_a_lost_session_waits_like_the_first(lead, server, clock):
    member, term = lead()
    server.cut()
    eventually(lambda: term.ended and server.lead, "it has the lock again")
    waits(member, server, clock)
    assert member.term(60).leader_id != term.leader_id


def test_a_leader_whose_proof_came_late_leads_again_under_a_new_id(lead, server, clock):
    """It has held the lock all the time: nobody else can have begun."""
    member, term = lead()
    once(server, partial(advance, clock, HEARTBEAT))
    eventually(lambda: term.ended is TermEnd.FENCED, "fenced")
    assert member.term(60).leader_id != term.leader_id


def test_who_leaves_in_order_says_so(lead, server):
    member, term = lead()
    member.stop(60)
    assert term.ended is TermEnd.REVOKED
    assert server.words == 1
    assert server.lead is None


def test_who_never_led_leaves_without_a_word(join, server, clock):
    """The one before may still believe."""
    member = join()
    looked(server)
    clock.now += SESSION - 0.01
    looked(server)
    member.stop(60)
    assert server.words == 0
    assert server.lead is None


@pytest.mark.parametrize(("shards", "shard"), [(1, 0), (3, 0), (3, 2)])
@pytest.mark.parametrize("how", ["abandoned records", "records in flight"])
def test_who_leaves_records_of_any_shard_in_doubt_leaves_without_a_word(lead, server, shards, shard, how):
    member, _ = lead(shards=shards, quiesce_timeout_seconds=0.05)
    term = member.terms(0)[shard]
    if how == "abandoned records":
        term.abandoned = True
    else:
        term.quiesced.clear()
    member.stop(60)
    assert server.words == 0
    assert server.lead is None


@pytest.mark.parametrize(("later", "words"), [(0.0, 0), (SESSION, 1)])
def test_who_was_fenced_leaves_with_a_word_once_nothing_of_that_term_can_arrive(lead, server, clock, later, words):
    """Requests of that term on their way may arrive for as long as a successor would have had to wait."""
    member, term = lead()
    once(server, partial(advance, clock, HEARTBEAT))
    eventually(lambda: term.ended is TermEnd.FENCED, "fenced")
    again = member.term(60)
    pass_by(server, clock, later)
    assert member.term(0) is again
    member.stop(60)
    assert server.words == words


@pytest.mark.parametrize("shards", [1, 3])
def test_the_lock_is_kept_until_no_shard_has_anything_in_flight(lead, server, shards):
    member, _ = lead(shards=shards, quiesce_timeout_seconds=30.0)
    terms = member.terms(0)
    for term in terms:
        term.quiesced.clear()
    stopper = threading.Thread(target=member.stop, args=(60,))
    stopper.start()
    for term in terms:
        eventually(lambda one=term: one.ended is TermEnd.REVOKED, "reported in time")
        looked(server)  # which keeps the session, too
        assert server.lead is not None
        assert server.words == 0
        term.quiesced.set()
    stopper.join()
    assert server.lead is None
    assert server.words == 1


def test_who_has_the_lock_leads_all_shards_under_one_lease(lead, server, clock):
    member, first = lead(shards=3)
    terms = member.terms(0)
    assert [term.shard for term in terms] == [0, 1, 2]
    assert terms[0] is first
    assert len({term.leader_id for term in terms}) == 3
    clock.now += HEARTBEAT - 0.01
    looked(server)
    clock.now += HEARTBEAT - 0.01
    assert member.terms(0) == terms, "each of them is extended"
    server.cut()
    eventually(lambda: [term.ended for term in terms] == [TermEnd.FENCED] * 3, "all end with the session")


def test_a_term_that_was_ended_by_itself_is_followed_by_another_and_the_other_shards_go_on(lead, server, clock):
    member, _ = lead(shards=3)
    first, second, third = member.terms(0)
    second.end(TermEnd.FENCED)
    eventually(lambda: len(member.terms(0)) == 3, "shard 1 is led again")
    assert (member.terms(0)[0], member.terms(0)[2]) == (first, third)
    assert member.terms(0)[1].leader_id != second.leader_id
    clock.now += HEARTBEAT - 0.01
    looked(server)
    clock.now += HEARTBEAT - 0.01
    assert len(member.terms(0)) == 3, "all are extended"
    member.stop(60)
    assert server.words == 0, "what it had on its way may arrive"


def test_the_successor_begins_when_the_word_is_over_and_not_before(lead, join, server):
    """While it stands another could take it for our own. The clock stands still: nobody waits for a timeout."""
    first, term = lead()
    second = join()
    spoken, over = threading.Event(), threading.Event()
    server.in_word = lambda: (spoken.set(), over.wait(60))
    stopper = threading.Thread(target=first.stop, args=(60,))
    stopper.start()
    try:
        assert spoken.wait(60)
        eventually(lambda: server.lead is not None, "the second has the lock")
        looked(server)
        assert second.term(0) is None
    finally:
        over.set()
        stopper.join()
    assert second.term(60).leader_id != term.leader_id


def test_a_successor_that_leaves_before_it_began_does_not_pass_the_word_on(join, server, clock):
    """It cannot know which leader it would speak of by then."""
    server.left = object()
    member = join()
    looked(server)
    member.stop(60)
    assert server.words == 0
    server.left = None
    waits(join(), server, clock)


def test_an_election_that_ends_by_itself_is_heard_of(lead, server):
    """A standby whose election has ended must not look alive: a caller that waits for its term gets the error."""
    member, term = lead()

    def broken():
        raise RuntimeError("broken")

    once(server, broken)
    with pytest.raises(RuntimeError, match="broken"):
        eventually(lambda: member.term(0.1) and False)
    assert term.ended is TermEnd.FENCED
