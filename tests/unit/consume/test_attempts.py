"""What a shard remembers of what was refused."""

import pytest

from harvest_lib.consume.attempts import Attempts, FunctionFailed

pytestmark = pytest.mark.quick


def test_a_message_is_set_aside_with_its_last_reason_after_so_many_attempts():
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
