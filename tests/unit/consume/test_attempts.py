"""A shard's memory of refused messages."""

import pytest

from harvest_lib.consume.attempts import Attempts, FunctionFailed, TrialPassed

pytestmark = pytest.mark.quick


def test_a_message_is_parked_with_its_last_reason_after_so_many_attempts():
    attempts = Attempts(2)
    assert attempts.spent(7) is None
    assert attempts.failed(FunctionFailed("first", 7)) == (1, 0.05)
    assert attempts.spent(7) is None
    assert attempts.failed(FunctionFailed("second", 7)) == (2, 0.1)
    assert attempts.spent(7) == "second"
    assert attempts.spent(8) is None


def test_what_is_kept_is_forgotten_and_what_was_not_reached_is_remembered():
    attempts = Attempts(1)
    attempts.failed(FunctionFailed("bad", 7))
    attempts.failed(FunctionFailed("bad", 9))
    assert attempts.spent(7) == "bad"
    attempts.kept()
    assert attempts.spent(7) is None
    assert attempts.spent(9) == "bad"


def test_a_message_that_was_passed_in_a_transaction_that_is_not_kept_is_remembered():
    attempts = Attempts(1)
    attempts.failed(FunctionFailed("bad", 7))
    assert attempts.spent(7) == "bad"
    attempts.failed(FunctionFailed("another", 9))
    attempts.kept()
    assert attempts.spent(7) == "bad"


def test_pauses_grow_up_to_five_seconds():
    attempts = Attempts(100)
    pauses = [attempts.failed(FunctionFailed("it passes"))[1] for _ in range(20)]
    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert pauses[-1] == 5.0
    attempts.kept()
    assert attempts.failed(FunctionFailed("it passes")) == (1, 0.05)


def test_what_is_anyone_s_makes_transactions_small_for_a_while():
    attempts = Attempts(5)
    assert not attempts.one_at_a_time
    attempts.failed(FunctionFailed("at the end", is_anyones=True))
    assert attempts.one_at_a_time
    for _ in range(1_000):
        attempts.kept()
    assert not attempts.one_at_a_time


@pytest.mark.parametrize(
    ("count", "bad"), [(count, bad) for count in (2, 3, 7, 64) for bad in {0, 1, count // 2, count - 1}]
)
def test_the_one_to_blame_for_what_fails_as_an_acknowledgement_is_finalized_is_found(count, bad):
    """By the logarithm of the messages in tries; `bad` is its place."""
    attempts, tries = Attempts(1), 0
    while attempts.spent(100 + bad) is None:
        taken = attempts.trial or count
        assert taken == count or attempts.trial
        end = {"taken": taken, "last": 99 + taken}
        if taken <= bad:
            attempts.failed(TrialPassed("", **end))
        else:
            attempts.failed(FunctionFailed("bad", 100 if taken == 1 else None, is_anyones=True, **end))
        tries += 1
    assert tries <= 2 + count.bit_length()
    assert [place for place in range(count) if attempts.spent(100 + place)] == [bad]
    assert attempts.trial is None


def test_a_failure_of_another_kind_ends_the_trials():
    attempts = Attempts(1)
    for taken in (8, 8, 4):
        attempts.failed(FunctionFailed("bad", is_anyones=True, taken=taken, last=taken))
    assert attempts.trial == 2
    attempts.failed(FunctionFailed("the database is away"))
    assert attempts.trial is None
