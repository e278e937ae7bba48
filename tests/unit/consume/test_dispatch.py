"""The message blamed for an error of a function, and those taken in: over a store that only tells if it stands.

That a real one does the same is in test_consume_shard_trouble and test_consume_at_once.
"""

import pytest
from confluent_kafka import KafkaError

from harvest_lib.consume import Batch, Message, ShardId, Transaction
from harvest_lib.consume.attempts import Attempts, FunctionFailed
from harvest_lib.consume.dispatch import Dispatch, OpenTransaction
from harvest_lib.consume.store import StateRefused
from harvest_lib.errors import KafkaUnavailable
from harvest_lib.sequencing.publisher import PublishRefused

pytestmark = pytest.mark.quick


class Passing(Exception):
    """Of the store, and over by itself."""


class Store:
    """A transaction that stands until somebody breaks it."""

    def __init__(self):
        self.is_open, self.parked, self.refuses = True, [], ()

    def will_pass(self, error):
        return isinstance(error, Passing)

    def flush(self):
        if self.refuses:
            raise StateRefused(self.refuses)

    def park(self, message, reason):
        self.parked.append((message.offset, reason))


class Scripted:
    """Follows a script at some offsets: an error is raised, "break" ends the transaction, after "refuse" the store does
    not take what was handed over."""

    def __init__(self, store, script, finalize=()):
        self.store, self.script, self.finalize, self.calls = store, script, finalize, []

    def consume_message(self, _transaction, message):
        self.calls.append(message.offset)
        self.do(self.script.get(message.offset, ()))

    def finalize_txn(self, _transaction):
        self.calls.append("end")
        self.do(self.finalize)

    def do(self, steps):
        for step in steps:
            if step == "break":
                self.store.is_open = False
            elif step == "refuse":
                self.store.refuses = BAD
            else:
                raise step


class AtOnce(Scripted):
    def consume_messages(self, _transaction, messages):
        self.calls.append([message.offset for message in messages])
        self.do(self.script.get("all", ()))


class Trial:
    """A dispatch, its transaction, and what it refused."""

    def __init__(self, script=None, kind=Scripted, attempts=None, finalize=()):
        self.store, self.attempts = Store(), attempts or Attempts(2)
        self.application = kind(self.store, script or {}, finalize)
        self.dispatch = Dispatch(self.application, self.store, self.attempts)
        self.opened = OpenTransaction(Transaction(shard=ShardId("c", "t", 0), state=None, publish=None), 0.0)

    def take(self, *pieces):
        for piece in pieces:
            self.dispatch.take(self.opened, iter(messages(*piece)))
        return self.opened

    def refused(self, call, *options):
        with pytest.raises(FunctionFailed) as shown:
            call(*options)
        return shown.value.offset, shown.value.is_anyones


def messages(*offsets):
    return Batch.of(Message(offset, None, None) for offset in offsets)


def watching(*failed, anyones=False):
    attempts = Attempts(2)
    for offset in failed:
        attempts.failed(FunctionFailed("bad", offset))
    if anyones:
        attempts.failed(FunctionFailed("bad", is_anyones=True))
    return attempts


def publish_refused(about):
    return PublishRefused(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), "t", about)


BAD = ValueError("bad")


def test_what_was_taken_in_is_counted_over_all_pieces():
    trial = Trial()
    opened = trial.take([4], [5, 7], [9])
    assert (opened.taken, opened.last, opened.only) == (4, 9, None)
    assert trial.application.calls == [4, 5, 7, 9]
    assert Trial().take([4]).only == 4


@pytest.mark.parametrize("attempts", [None, watching(99), watching(anyones=True)])
@pytest.mark.parametrize("at", [4, 5, 9])
def test_a_message_of_which_the_function_raises_is_blamed(attempts, at):
    trial = Trial({at: [BAD]}, attempts=attempts)
    assert trial.refused(trial.take, [4, 5, 6], [8, 9, 10]) == (at, False)
    assert trial.application.calls[-1] == at, "none after it is tried"


@pytest.mark.parametrize(
    ("script", "blamed"),
    [
        ({5: ["break"], 6: [BAD]}, (None, True)),  # whether 6 fails of itself, nobody knows
        ({4: ["break", BAD]}, (4, False)),
        ({5: ["break", BAD]}, (None, True)),
        ({8: ["break", BAD]}, (8, False)),  # before it, the transaction stood
        ({5: ["break"]}, (None, True)),
        ({6: ["break"]}, (None, True)),
        ({10: ["break"]}, (None, True)),
    ],
)
def test_where_it_cannot_be_told_who_broke_the_transaction_it_is_anyones(script, blamed):
    trial = Trial(script)
    assert trial.refused(trial.take, [4, 5, 6], [8, 9, 10]) == blamed
    careful = Trial(script, attempts=watching(anyones=True))
    assert careful.refused(careful.take, [4, 5, 6], [8, 9, 10]) == (min(script), False)


def test_a_value_that_the_store_does_not_take_is_found_out_among_those_of_one_transaction():
    trial = Trial({5: ["refuse"]})
    assert trial.refused(trial.dispatch.finalize, trial.take([4, 5, 6])) == (None, True)
    careful = Trial({5: ["refuse"]}, attempts=watching(anyones=True))
    assert careful.refused(careful.take, [4, 5, 6]) == (5, False)


def test_who_breaks_it_alone_is_blamed():
    trial = Trial({5: ["break"]})
    assert trial.refused(trial.take, [3, 4], [5]) == (5, False)


@pytest.mark.parametrize("attempts", [None, watching(anyones=True)])
def test_what_passes_is_nobodys_and_what_kafka_is_not_up_to_neither(attempts):
    trial = Trial({5: [Passing()]}, attempts=attempts)
    assert trial.refused(trial.take, [4, 5]) == (None, False)
    failure = KafkaUnavailable("gone", evidence="", next_step="")
    for script, finalize in (({5: [failure]}, ()), ({}, [failure])):
        trial = Trial(script, attempts=attempts, finalize=finalize)
        with pytest.raises(KafkaUnavailable):
            trial.dispatch.finalize(trial.take([4, 5]))


@pytest.mark.parametrize("attempts", [None, watching(anyones=True)])
def test_what_kafka_never_takes_is_put_down_to_the_message_it_follows_from(attempts):
    """It may be an earlier one: the outcome of its publications is known later."""
    trial = Trial({5: [publish_refused(4)]}, attempts=attempts)
    assert trial.refused(trial.take, [4, 5]) == (4, False)
    trial = Trial({5: [publish_refused(None)]}, attempts=attempts)  # by a publisher of the function's own
    assert trial.refused(trial.take, [4, 5]) == (5, False)


def test_so_is_what_is_known_only_as_the_transaction_ends():
    trial = Trial(finalize=[publish_refused(4)])
    assert trial.refused(trial.dispatch.finalize, trial.take([4, 5])) == (4, False)
    trial = Trial()
    late = trial.dispatch.refused(publish_refused(4), trial.take([4, 5]).only, is_anyones=True)
    assert (late.offset, late.is_anyones) == (4, False)
    late = trial.dispatch.refused(publish_refused(None), trial.take([4, 5]).only, is_anyones=True)
    assert (late.offset, late.is_anyones) == (None, True)
    trial = Trial()
    late = trial.dispatch.refused(publish_refused(None), trial.take([4]).only, is_anyones=True)
    assert (late.offset, late.is_anyones) == (4, True)


def test_what_failed_too_often_is_parked_and_the_others_are_taken_in():
    trial = Trial({5: [BAD]}, attempts=watching(5, 5, 7))
    opened = trial.take([4, 5], [7])
    assert trial.store.parked == opened.parked == [(5, "bad")]
    assert trial.application.calls == [4, 7]
    assert (opened.taken, opened.last) == (2, 7)


def test_where_all_is_parked_the_function_is_not_asked_to_end():
    trial = Trial(attempts=watching(5, 5))
    opened = trial.take([5])
    assert (opened.taken, opened.last, opened.only) == (0, None, None)
    trial.dispatch.finalize(opened)
    assert trial.application.calls == []


@pytest.mark.parametrize(("taken", "only"), [([4], 4), ([4, 5], None)])
@pytest.mark.parametrize("steps", [[BAD], ["break"], ["refuse"]])
def test_what_fails_at_the_end_is_blamed_on_a_message_only_where_there_was_but_one(steps, taken, only):
    trial = Trial(finalize=steps)
    assert trial.refused(trial.dispatch.finalize, trial.take(taken)) == (only, True)


def test_the_message_that_is_taken_in_is_known_to_what_it_publishes_and_none_at_the_end():
    seen = []

    class Looking(AtOnce):
        def do(self, _steps):
            seen.append(trial.opened.about and trial.opened.about.offset)

    for attempts in (None, watching(anyones=True)):
        trial = Trial(kind=Looking, attempts=attempts)
        trial.take([0, 4])
        trial.dispatch.take_at_once(trial.opened, messages(5, 6))
        trial.take([7])
        trial.dispatch.finalize(trial.opened)
        assert seen == [0, 4, None, 7, None]
        seen.clear()


def test_what_goes_into_one_call():
    trial = Trial(kind=AtOnce)
    takes = trial.dispatch.takes_at_once
    assert takes(messages(4, 5))
    assert not takes(messages(4))
    assert not takes(tuple(messages(4, 5)))
    assert not takes(iter(messages(4, 5)))
    assert not Trial().dispatch.takes_at_once(messages(4, 5))
    assert not Trial(kind=AtOnce, attempts=watching(9)).dispatch.takes_at_once(messages(4, 5))
    trial.attempts.failed(FunctionFailed("bad", is_anyones=True))
    assert not takes(messages(4, 5)), "from now on one by one"
    trial.take([1])
    trial.dispatch.take_at_once(trial.opened, messages(4, 6))
    assert (trial.opened.taken, trial.opened.last, trial.application.calls) == (3, 6, [1, [4, 6]])


@pytest.mark.parametrize("steps", [[BAD], ["break"], ["break", BAD]])
def test_what_fails_of_one_call_is_anyones(steps):
    trial = Trial({"all": steps}, AtOnce)
    assert trial.refused(trial.dispatch.take_at_once, trial.opened, messages(4, 5)) == (None, True)
    trial = Trial({"all": [Passing()]}, AtOnce)
    assert trial.refused(trial.dispatch.take_at_once, trial.opened, messages(4, 5)) == (None, False)
    trial = Trial({"all": [KafkaUnavailable("gone", evidence="", next_step="")]}, AtOnce)
    with pytest.raises(KafkaUnavailable):
        trial.dispatch.take_at_once(trial.opened, messages(4, 5))
