"""Ready transforms, what is made of their declarations, and what a transform may not return."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from harvest_lib.pipeline.message import Op, PipelineMessage
from harvest_lib.pipeline.transforms import TransformFailed, applied
from harvest_lib.pipeline.transforms.loading import NotATransform, load

pytestmark = pytest.mark.quick

FLIGHT = PipelineMessage(
    Op.INSERT,
    1_357_034_400_123,
    "public.flights",
    {"flight": 1545, "origin": "EWR", "dest": "IAH", "price": Decimal("10.50"), "at": datetime(2013, 1, 1, tzinfo=UTC)},
    offset=7,
)


def through(entry, message=FLIGHT):
    return applied([load(entry)], message)


PERSON = {"name": "Ann", "mail": None}


@pytest.mark.parametrize(
    ("entry", "data", "expected"),
    [
        ({"pick": ["dest", "flight", "nothing"]}, FLIGHT.data, {"dest": "IAH", "flight": 1545}),
        ({"omit": ["price", "at", "nothing"]}, FLIGHT.data, {"flight": 1545, "origin": "EWR", "dest": "IAH"}),
        ({"rename": {"a": "b", "b": "a"}}, {"a": 1, "b": 2}, {"b": 1, "a": 2}),
        ({"rename": {"origin": "from"}}, {"flight": 1545}, {"flight": 1545}),
        ({"redact": ["name", "mail"]}, PERSON, {"name": "[redacted]", "mail": None}),
        ({"redact": {"fields": ["name"], "by": None}}, PERSON, {"name": None, "mail": None}),
    ],
)
def test_fields_are_picked_omitted_renamed_all_at_once_and_redacted_unless_null(entry, data, expected):
    message = FLIGHT._replace(data=data)
    assert through(entry, message) == message._replace(data=expected)
    assert list(through(entry, message).data) == list(expected)


def test_no_field_is_lost_to_another_that_is_renamed():
    with pytest.raises(TransformFailed, match="two fields would have one name: dest"):
        through({"rename": {"origin": "dest"}})


@pytest.mark.parametrize(
    ("entry", "namespace"),
    [
        ({"route": "lake.flights"}, "lake.flights"),
        ({"route": {"find": r"public\.(.*)", "to": r"lake.\1"}}, "lake.flights"),
        ({"route": {"find": r"public\.(?P<table>.*)", "to": r"\g<table>"}}, "flights"),
        ({"route": {"find": "public", "to": "other"}}, "public.flights"),
        ({"route": {"find": r"[[:alpha:]]+\.(fl.*)", "to": r"lake.\1"}}, "lake.flights"),
        ({"route": {"find": r"(p.*)(x)?\.fl.*", "to": r"{é}\\\g<0>.\g<1>\2\."}}, "{é}\\public.flights.public\\."),
    ],
)
def test_messages_are_routed_to_another_namespace(entry, namespace):
    assert through(entry).namespace == namespace


def test_the_envelope_is_that_of_cloud_events():
    message = through({"cloud_events": {"source": "/shop", "subject": "flight"}})
    assert message.data == {
        "specversion": "1.0",
        "id": "1357034400123-7",
        "source": "/shop",
        "type": "public.flights.insert",
        "time": "2013-01-01T10:00:00.123Z",
        "datacontenttype": "application/json",
        "subject": "1545",
        "data": FLIGHT.data,
    }


def drop_newark(message, origin="EWR"):
    return None if message.data["origin"] == origin else message


def test_functions_are_found_by_their_import_path_and_given_what_they_ask_for(tmp_path):
    (tmp_path / "cleaning_of_this_test.py").write_text(
        "def drop(message, origin='EWR'):\n    return None if message.data['origin'] == origin else message\n"
    )
    assert applied([load({"call": "cleaning_of_this_test:drop"}, beside=tmp_path)], FLIGHT) is None
    other = load({"call": "cleaning_of_this_test:drop", "with": {"origin": "JFK"}}, beside=tmp_path)
    assert applied([other], FLIGHT) == FLIGHT


def test_a_dropped_message_gets_to_no_further_transform():
    def never(message):
        raise AssertionError

    assert applied([("drop", drop_newark), ("never", never)], FLIGHT) is None


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("pick", "is not a transform"),
        ({}, "is not a transform"),
        ({"pick": []}, "names of fields"),
        ({"pick": ["a", "a"]}, "twice"),
        ({"pick": [1]}, "names of fields"),
        ({"pikc": ["a"]}, "`pikc` is no transform"),
        ({"pick": ["a"], "omit": ["b"]}, "2 transforms"),
        ({"rename": ["a"]}, "old and new"),
        ({"rename": {"a": "c", "b": "c"}}, "one name"),
        ({"route": {"find": "("}}, "lacks `to`"),
        ({"route": {"find": "(", "to": "a"}}, "missing )"),
        ({"route": {"find": "(?=a)", "to": "b"}}, "regular expression of Go's `regexp`: invalid perl operator: (?="),
        ({"route": {"find": "a", "to": r"\1"}}, "group"),
        ({"route": {"find": "(a)", "to": r"\g<b>"}}, r"group that `find` has not: \g<b>"),
        ({"route": {"find": "(a)", "to": r"\d"}}, r"begins no group: \d"),
        ({"route": {"find": "(a)", "to": "b\\"}}, "begins no group"),
        ({"route": 3}, "needs a namespace"),
        ({"redact": {"field": ["a"]}}, "does not know `field`"),
        ({"cloud_events": {}}, "lacks `source`"),
        ({"call": "no_colon"}, "import path"),
        ({"call": "no.such.module:function"}, "cannot import `no.such.module`"),
        ({"call": "json:no_such"}, "has no `no_such`"),
        ({"call": "json:__doc__"}, "is no function"),
        ({"call": "json:loads", "with": [1]}, "`with`"),
        ({"call": "json:loads", "wiht": {}}, "`wiht`"),
    ],
)
def test_what_is_no_transform_is_refused(entry, complaint):
    with pytest.raises(NotATransform) as refused:
        load(entry)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ({"flight": 1}, "returned dict"),
        (FLIGHT._replace(namespace=b"x"), "namespace"),
        (FLIGHT._replace(namespace=""), "namespace"),
        (FLIGHT._replace(op=1), "op that is no Op"),
        (FLIGHT._replace(timestamp=1.5), "whole number"),
        (FLIGHT._replace(data=[1]), "data that is no mapping"),
    ],
)
def test_junk_that_a_transform_returns_is_told(returned, complaint):
    with pytest.raises(TransformFailed, match=complaint):
        applied([("junk", lambda message: returned)], FLIGHT)


def test_a_transform_cannot_move_a_message_in_the_log():
    assert applied([("new", lambda message: PipelineMessage(Op.INSERT, 1, "a", {}))], FLIGHT).offset == 7
