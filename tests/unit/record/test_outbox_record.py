"""Records that `OutboxRecord.check` passes can be stored and sent; it names the fault of the others."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harvest_lib.consume import Flag, MalformedId, pack, unpack
from harvest_lib.errors import RecordError
from harvest_lib.record import INTERNAL_TOPICS, OutboxRecord, RecordLimits, misleading_header

pytestmark = pytest.mark.quick

LIMITS = RecordLimits()


def record(**fields):
    return OutboxRecord(**{"topic": "orders", "key": "k", "value": "v", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": "a"},
        {"topic": "x" * 249},
        {"topic": "A-Z_0.9"},
        {"topic": "..."},
        {"topic": ".hidden"},
        {"key": ""},
        {"key": "k" * 100},
        {"key": "ü" * 100},
        {"value": ""},
        {"value": None},
        {"value": "v" * 10_000},
        {"value": "\n\t\x01 \U0001f40c"},
        {"headers": [("", ""), ("a", None), ("a", "twice")]},
        {"headers": [("n" * 1_000, "c" * 100_000)]},
    ],
)
def test_what_both_take_passes(fields):
    record(**fields).check(LIMITS)


@pytest.mark.parametrize(
    "topic", ["", ".", "..", " ", "with space", "sl/ash", "ümlaut", "new\nline", "orders\n", "semi;colon", "nul\x00"]
)
def test_an_illegal_topic_is_refused(topic):
    with pytest.raises(RecordError, match="not legal"):
        record(topic=topic).check(LIMITS)


@pytest.mark.parametrize(
    ("fields", "what", "evidence"),
    [
        ({"topic": "x" * 250}, "topic", "250 characters, the column takes 249"),
        ({"key": "k" * 101}, "key", "101 characters, the column takes 100"),
        ({"value": "v" * 10_001}, "value", "10001 characters, the column takes 10000"),
    ],
)
def test_what_is_longer_than_its_column_is_refused(fields, what, evidence):
    with pytest.raises(RecordError, match=f"the {what} of a record .* is too long") as caught:
        record(**fields).check(LIMITS)
    assert caught.value.evidence == evidence


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"key": "a\x00b"}, "key"),
        ({"value": "a\x00b"}, "value"),
        ({"headers": [("ok", "ok"), ("a\x00b", "ok")]}, "header name"),
        ({"headers": [("ok", None), ("ok", "a\x00b")]}, "header value"),
    ],
)
def test_a_nul_character_is_refused_wherever_it_is(fields, what):
    with pytest.raises(RecordError, match=f"the {what} of a record .* holds a NUL") as caught:
        record(**fields).check(LIMITS)
    assert caught.value.evidence == "at position 1"


def test_limits_can_be_those_of_another_table():
    wide = RecordLimits(key_chars=200, value_chars=None)
    record(key="k" * 200, value="v" * 1_000_000).check(wide)
    with pytest.raises(RecordError, match="key"):
        record(key="k" * 201).check(wide)
    with pytest.raises(RecordError, match="value"):
        record(value="four").check(RecordLimits(value_chars=3))


def test_the_topic_has_kafkas_limit_whatever_the_table():
    with pytest.raises(RecordError, match="topic"):
        record(topic="x" * 250).check(RecordLimits(key_chars=1_000, value_chars=None))


def test_an_error_shows_no_payload():
    """I10: a value may be a secret, and a key a person."""
    with pytest.raises(RecordError) as caught:
        record(value="hunter2\x00").check(LIMITS)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(RecordError) as caught:
        record(key="jane@example.com" * 10).check(LIMITS)
    assert "jane" not in str(caught.value)


def test_an_error_cuts_a_long_topic_short():
    with pytest.raises(RecordError) as caught:
        record(topic="/" * 10_000).check(LIMITS)
    assert len(str(caught.value)) < 500


def test_text_that_is_not_valid_unicode_is_refused():
    with pytest.raises(RecordError, match="not valid Unicode") as caught:
        OutboxRecord(topic="t", key="k", value="canary\ud800").check(RecordLimits())
    assert "canary" not in repr(caught.value) + repr(caught.value.__cause__)


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_topics_of_kafka_s_own_are_refused(topic):
    with pytest.raises(RecordError, match="Kafka's own"):
        record(topic=topic).check(LIMITS)


ID = "A" * 6 + "\x1f\u0081" + "A" * 7
ORIGIN = "\x01" + "l" * 16 + "\x01" * 8


@pytest.mark.parametrize(
    "headers",
    [[("message-id", ID)], [("a", ID), ("message-id", "mine"), ("message-id", ID)], [("harvest", ORIGIN)]],
    ids=["id", "id behind another", "origin"],
)
def test_a_header_that_reads_as_ours_is_refused(headers):
    """Readers would wait for an acknowledgement, and audits would count another record."""
    with pytest.raises(RecordError, match="reads as the harvester's own"):
        record(headers=headers).check(LIMITS)


@pytest.mark.parametrize(
    "value", [None, "", "m-1", "5fd924625f6ab3a4", "1f0c2c5e-8d1a-11f1-8f3e-000000000001", ORIGIN[1:], ID + "A"]
)
def test_other_headers_of_these_names_pass(value):
    """They are other programs' business."""
    record(headers=[("message-id", value), ("harvest", value)]).check(LIMITS)


@given(st.one_of(st.binary(max_size=20), st.binary(min_size=16, max_size=16)))
@example(ID.encode())
@example(pack(1, 2, Flag.CONTINUE_TXN))
def test_what_reads_as_an_id_is_what_readers_take_for_one(value):
    try:
        unpack(value)
    except MalformedId:
        assert misleading_header(["message-id"], [value]) == ""
    else:
        assert misleading_header(["message-id"], [value]) == "message-id"
