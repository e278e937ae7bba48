"""A pipeline is killed anywhere and started again, until it ends: every writer gets everything, in order, and a second
time only what it had done since its offsets were last flushed."""

import random

import pytest
from support.killed_pipeline import WRITERS, Killed, wanted

pytestmark = pytest.mark.full


def judged(folder, writer):
    """Return how often it was flushed that it had got on; fails where a promise is broken."""
    expected = wanted(writer)
    place_of = {offset: place for place, offset in enumerate(expected)}
    furthest, flushed, previous, log_end_at_start = -1, 0, None, 0
    flushes, highest, unflushed = 0, -1, 0
    for line in (folder / writer).read_text().splitlines():
        kind, *numbers = line.split()
        match kind:
            case "R":
                previous, log_end_at_start = None, highest + 1
                unflushed = sum(offset >= flushed for offset in expected[: furthest + 1])
            case "F":
                assert int(numbers[0]) >= flushed, "offsets step back"
                flushes += int(numbers[0]) > flushed
                flushed = int(numbers[0])
            case "W":
                offset, size = map(int, numbers)
                assert offset in place_of, f"{offset} is not for {writer}"
                place = place_of[offset]
                if previous is None:
                    assert place <= furthest + 1, f"{expected[furthest + 1]} never came to {writer}"
                    assert offset >= flushed, f"{offset} came again, though {flushed} was flushed"
                else:
                    assert place == previous + 1, "out of order, or a gap"
                if offset < log_end_at_start:
                    assert size == 1, "what was in the log at the start comes one at a time"
                unflushed -= place <= furthest
                assert unflushed >= 0, "more came again than was not flushed"
                furthest, previous, highest = max(furthest, place), place, max(highest, offset)
    assert furthest == len(expected) - 1, "not everything came"
    return flushes


def kept_in_time(folder):
    """Messages reported to the reader as kept had come to every writer. Only the last can be judged from files."""
    reported = [int(line.split()[1]) for line in (folder / "reader").read_text().splitlines()]
    assert reported
    assert reported[-1] >= max(wanted("all"))


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 60))])
def test_killed_anywhere_it_sends_everything_in_order_and_repeats_only_what_was_not_flushed(seed, tmp_path):
    dice = random.Random(seed)
    kills = 0
    with Killed() as killed:
        while not killed.run(1 + int(dice.expovariate(1 / 120)), tmp_path):
            kills += 1
            assert kills < 500, "it does not get on"
    flushes = {writer: judged(tmp_path, writer) for writer in WRITERS}
    kept_in_time(tmp_path)
    assert kills
    # How much came again is what the disk had no time for; but that runs of such a length end at all, flushes did.
    assert min(flushes.values()) > 1
