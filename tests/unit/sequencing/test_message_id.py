"""Ids of messages: UUIDs as others read them, in the order in which they were made."""

import itertools
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_lib.consume import Clock, Flag, MalformedId, new_producer_id, pack, unpack
from harvest_lib.sequencing.message_id import clock_at

pytestmark = pytest.mark.quick

SECOND = 10**9
NOON = 1_700_000_000 * SECOND


@given(producer=st.integers(0, 2**48 - 1), clock=st.integers(0, 2**64 - 1), flag=st.sampled_from(Flag))
def test_an_id_is_a_version_1_uuid_and_comes_apart_again(producer, clock, flag):
    packed = pack(producer, clock, flag)
    assert unpack(packed) == (producer, clock, flag)
    read = uuid.UUID(bytes=packed)
    assert (read.version, read.variant, read.node, read.time) == (1, uuid.RFC_4122, producer, clock >> 4)


def test_its_time_is_when_it_was_made():
    made = uuid.UUID(bytes=pack(1, Clock(lambda: NOON).tick(), Flag.OUTSIDE_TXN))
    unix = (made.time - 0x01B21DD213814000) * 100
    assert unix == NOON


@given(times=st.lists(st.integers(0, 50), min_size=2))
def test_a_clock_rises_whatever_the_time_does(times):
    left = iter([NOON + each * 100 for each in times])
    clock = Clock(lambda: next(left))
    ticks = [clock.tick() for _ in times]
    assert all(later > earlier for earlier, later in itertools.pairwise(ticks))
    assert all(tick >= clock_at(NOON + each * 100) for tick, each in zip(ticks, times, strict=True))


@pytest.mark.parametrize(
    ("message_id", "said"),
    [
        (b"", "16 bytes, this one 0"),
        (bytes(17), "this one 17"),
        (uuid.UUID(int=7, version=4).bytes, "version 1"),
        (bytes(16), "version 1"),
    ],
)
def test_what_is_no_id_is_malformed(message_id, said):
    with pytest.raises(MalformedId, match=said):
        unpack(message_id)


def test_producers_are_drawn_and_marked_as_drawn():
    drawn = {new_producer_id() for _ in range(100)}
    assert len(drawn) == 100
    assert all(each < 2**48 and each >> 40 & 1 for each in drawn)
