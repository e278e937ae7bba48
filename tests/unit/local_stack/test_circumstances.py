"""The one error for what the machine refuses a stack."""

import errno
from pathlib import Path

import pytest

from harvest_lib.errors import StackError
from harvest_lib.local_stack.circumstances import explained

pytestmark = pytest.mark.gate

STATE = Path("/some/state")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_room_is_named(number):
    said = explained(OSError(number, "no room"), STATE)
    assert (said.cause, said.next_step[:30]) == ("the disk is full", "make room where /some/state is")
    assert "no room" in said.evidence


def test_a_server_that_found_no_room_is_named():
    seen = "ERROR | java.io.IOException: No space left on device"
    found = StackError("kafka-1 ended", evidence=seen, next_step="read its log")
    said = explained(found, STATE)
    assert said.cause == "kafka-1 ended, since the disk is full"
    assert said.evidence == seen
    assert said.next_step.startswith("make room where /some/state is")


def test_what_may_not_be_done_is_named():
    said = explained(PermissionError(errno.EACCES, "Permission denied", "/some/state/lock"), STATE)
    assert said.cause == "the local stack may not do what it must on this machine"
    assert "/some/state/lock" in said.evidence


def test_another_error_stays_as_it_is():
    found = StackError("cause", evidence="evidence", next_step="next")
    assert explained(found, STATE) is found
