"""The packed header: a stamp is unpacked as it was packed, and nothing else is unpacked."""

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_lib.record.header import VERSION, split, stamp, unpack

pytestmark = pytest.mark.quick

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.uuids(), INT64)
def test_what_is_stamped_is_unpacked(leader, outbox_id):
    value = stamp(leader)(outbox_id)
    assert unpack(value) == (leader, outbox_id)
    assert split(value) == (leader.bytes, outbox_id)


def test_the_layout_is_version_leader_id_big_endian():
    value = stamp(UUID("00112233-4455-6677-8899-aabbccddeeff"))(258)
    assert value.hex() == "01" + "00112233445566778899aabbccddeeff" + "0000000000000102"


@given(st.binary(max_size=40))
def test_anything_else_is_refused(value):
    if len(value) == 25 and value[0] == VERSION:
        value = b"\x02" + value[1:]
    with pytest.raises(ValueError, match="header"):
        unpack(value)


@given(st.uuids(), st.integers(min_value=2**63))
def test_an_id_outside_64_bits_is_refused(leader, outbox_id):
    with pytest.raises(struct.error):
        stamp(leader)(outbox_id)
