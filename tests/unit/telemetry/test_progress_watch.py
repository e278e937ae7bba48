"""For how long a backlog was not reduced, from what was seen of it."""

import pytest

from harvest_lib.telemetry.health import ProgressWatch

pytestmark = pytest.mark.quick


def stalled(*seen, quiet=0.0):
    watch = ProgressWatch()
    for now, mark, waits, age in seen:
        watch.observe(now, mark, waits=waits, age_seconds=age, quiet_seconds=quiet)
    return watch.stalled_seconds


@pytest.mark.parametrize(
    ("seen", "seconds"),
    [
        ([(0, 1, True, 5.0), (100, 1, True, 105.0)], 100),
        ([(0, 1, True, 5.0), (100, 2, True, 105.0)], 0),
        ([(0, 1, True, 5.0), (60, 2, True, 65.0), (100, 2, True, 105.0)], 40),
        ([(0, 1, False, 0.0), (3600, 1, True, 2.0)], 2),
        ([(0, 1, True, 5.0), (100, 1, False, 0.0)], 0),
        ([(0, 1, False, 0.0), (100, 1, True, 90.0), (110, 1, True, 100.0)], 100),
    ],
    ids=["nothing done", "done", "done, then nothing", "came just now", "empty", "nobody asked for long"],
)
def test_a_backlog_stalls_while_nothing_of_it_is_done(seen, seconds):
    assert stalled(*seen) == seconds


def test_a_first_look_knows_only_what_the_checkpoint_says():
    assert stalled((0, 1, True, 900.0)) == 0
    assert stalled((0, 1, True, 900.0), quiet=700.0) == 700
    assert stalled((0, 1, True, 30.0), quiet=700.0) == 30


@pytest.mark.parametrize("age", [0.0, None], ids=["a writer's clock is ahead", "no column says it"])
def test_an_age_that_says_nothing_hides_nothing(age):
    assert stalled((0, 1, True, age), (100, 1, True, age)) == 100


def test_a_writer_whose_clock_is_behind_makes_nothing_stall():
    assert stalled((0, 1, True, 3600.0), (5, 2, True, 3600.0), (8, 2, True, 3603.0)) == 3
