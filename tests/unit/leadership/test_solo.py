"""Solo leads again after a term that was fenced, and no more once it was stopped."""

import pytest

from harvest_lib.leadership import Solo, TermEnd

pytestmark = pytest.mark.quick


def test_a_term_that_was_fenced_is_followed_by_another_until_the_stop():
    solo = Solo(shards=2)
    solo.start()
    first, second = solo.terms(0)
    first.end(TermEnd.FENCED)
    third, still = solo.terms(0, known={first, second})
    assert (third.shard, still) == (0, second)
    assert third.leader_id != first.leader_id
    solo.stop(0)
    assert solo.terms(0) == ()
