"""Waiting for what has to come, for so long and no longer."""

import pytest

from harvest_lib.errors import StackError
from infra.waiting import until

pytestmark = pytest.mark.quick


def test_what_was_waited_for_is_returned():
    answers = iter([None, "", "there"])
    assert until(lambda: next(answers), 60, "it did not come", next_step="", tick_seconds=0) == "there"


def test_what_is_there_is_not_late():
    assert until(lambda: True, 0, "it did not come", next_step="")


def test_what_does_not_come_is_said_with_its_evidence_of_then():
    asked = []
    with pytest.raises(StackError) as raised:
        until(lambda: asked.append(1), 0, "it did not come", evidence=lambda: f"asked {len(asked)} x", next_step="look")
    assert (raised.value.cause, raised.value.evidence, raised.value.next_step) == (
        "it did not come",
        "asked 1 x",
        "look",
    )


def test_what_goes_wrong_meanwhile_is_raised_at_once():
    def look():
        raise StackError("it ended by itself", next_step="look")

    with pytest.raises(StackError, match="it ended by itself"):
        until(lambda: True, 60, "it did not come", next_step="", watched=[look])


def test_the_time_begins_again_with_each_change_of_the_progress():
    steps = iter([0, 1, 2, 3, 3])
    with pytest.raises(StackError):
        until(lambda: None, 0, "it did not come", next_step="", tick_seconds=0, progress=lambda: next(steps))
    assert next(steps, None) is None, "all steps were looked at"
