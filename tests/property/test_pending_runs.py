"""Batches that are taken run by run come to the same as messages that are taken one by one."""

import doctest
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hypothesis_profiles import examples

from harvest_lib.consume import Batch, Flag, MalformedId, Message, Sequencer, pack, unpack
from harvest_lib.sequencing import pending_runs
from harvest_lib.sequencing.pending_runs import find_runs

pytestmark = pytest.mark.quick

UPPER_TIME = 1 << 36
"""From here on a clock is in another half of the time."""
STRETCH = st.tuples(
    st.integers(1, 3),  # producer
    st.integers(0, 300),  # its clock, in units of the next
    st.sampled_from([1, 16, UPPER_TIME // 4]),
    st.integers(1, 14),  # how many messages
    st.sampled_from([*[Flag.CONTINUE_TXN] * 3, Flag.ACK_TXN, Flag.OUTSIDE_TXN]),
)
ODD = st.sampled_from([None, *(pack(1, 0, flag) for flag in Flag), b"", b"7", bytes(16), b"x" * 16, b"x" * 15])
LOGS = st.lists(st.one_of(STRETCH, STRETCH, STRETCH, ODD), max_size=12)


def ids_of(log):
    ids = []
    for each in log:
        if isinstance(each, tuple):
            producer, clock, step, count, flag = each
            ids += [pack(producer, (clock + number) * step, flag) for number in range(count)]
        else:
            ids.append(each)
    return ids


def taken(messages, ring):
    sequencer = Sequencer(ring=ring)
    for found in sequencer.take(messages):
        yield list(found) if isinstance(found, Batch) else found, stands(sequencer)
    yield None, stands(sequencer)


def stands(sequencer):
    counted = {name: value for name, value in vars(sequencer).items() if not name.startswith("_")}
    return counted, sequencer.states(), list(sequencer._holding)


@settings(max_examples=examples(gate=200, random=600))
@given(log=LOGS, ring=st.integers(1, 60))
def test_a_batch_comes_to_the_same_as_its_messages(log, ring):
    messages = [Message(offset, message_id, None) for offset, message_id in enumerate(ids_of(log))]
    assert list(taken(Batch.of(messages), ring)) == list(taken(iter(messages), ring))


@settings(max_examples=examples(gate=100, random=200))
@given(log=LOGS)
def test_a_run_is_of_one_producer_pending_and_rising(log):
    checked(ids_of(log))


def checked(ids):
    """Return the runs, each of which keeps what is promised."""
    found, after = list(find_runs(ids)), 0
    for begin, end in found:
        assert begin >= after
        assert end - begin > 1
        producers, clocks, flags = zip(*map(unpack, ids[begin:end]), strict=True)
        assert set(producers) == {producers[0]}
        assert set(flags) == {Flag.CONTINUE_TXN}
        assert all(clock < following for clock, following in pairwise(clocks))
        after = end
    return found


@pytest.mark.parametrize("upper_time", [0, (1 << 28) - 1])
def test_whatever_bit_differs_from_some_id_on_or_of_one_the_promise_is_kept(upper_time):
    ids = stretch(1, range(upper_time << 32, (upper_time << 32) + 100))
    for bit in range(128):
        flipped = [(int.from_bytes(one) ^ 1 << bit).to_bytes(16) for one in ids]
        for mixed in (ids[:50] + flipped[50:], flipped[:50] + ids[50:], [*ids[:50], flipped[50], *ids[51:]]):
            assert sum(end - begin for begin, end in checked(mixed)) >= 49, bit
        checked(flipped)


def test_ids_of_one_moment_are_one_run_only_where_their_count_rises():
    one_moment = [pack(1, clock, Flag.CONTINUE_TXN) for clock in range(16)]
    assert checked(one_moment) == [(0, 16)]
    later = stretch(1, range(1, 60))
    assert checked(one_moment + later) == [(0, 75)]
    again = [*later[:30], later[29], *later[30:]]
    assert checked(again) == [(0, 30), (30, 60)]
    swapped = [*later, pack(1, 16 * 60 + 1, Flag.CONTINUE_TXN), pack(1, 16 * 60, Flag.CONTINUE_TXN)]
    assert checked(swapped) == [(0, 60)]


def stretch(producer, clocks, flag=Flag.CONTINUE_TXN):
    return [pack(producer, 16 * clock, flag) for clock in clocks]


def test_runs_are_as_long_as_they_can_be():
    pending = stretch(1, range(50)) + stretch(1, [50], Flag.ACK_TXN) + stretch(1, range(51, 80)) + stretch(2, range(9))
    assert list(find_runs(pending)) == [(0, 50), (51, 80), (80, 89)]
    assert list(find_runs(stretch(1, [*range(20), *range(20)]))) == [(0, 20), (20, 40)]
    assert list(find_runs(stretch(1, range(9000)))) == [(0, 9000)]


def test_where_runs_are_short_there_are_none():
    assert list(find_runs([one for turn in range(20) for one in stretch(turn % 3, [turn, turn + 1])])) == []
    assert list(find_runs(stretch(1, [1]))) == list(find_runs([])) == []


def test_what_is_malformed_is_no_run():
    wrong_version = [bytes([*one[:6], one[6] | 0x40, *one[7:]]) for one in stretch(1, range(20))]
    assert list(find_runs(wrong_version)) == []
    for one in wrong_version:
        try:
            unpack(one)
        except MalformedId:
            continue
        raise AssertionError(one)


def test_the_worked_example_holds():
    tried = doctest.testmod(pending_runs)
    assert tried.attempted
    assert not tried.failed
