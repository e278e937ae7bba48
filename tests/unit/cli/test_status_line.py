"""The status line of `harvest run`, and text and numbers as the terminal, or a reader of JSON, takes them."""

import json
import math
import re
import uuid

import pytest

from harvest_lib.cli.status_line import StatusLine
from harvest_lib.cli.terminal import age, json_text, printable, watched
from harvest_lib.harvester.harvest import State

pytestmark = pytest.mark.quick


class Harvest:
    """The attributes that the line reads."""

    state = State.RUNNING
    leader_id = None
    delivered_records = 0
    in_flight_records = 0


def test_it_says_the_role():
    harvest = Harvest()
    line = StatusLine(harvest)
    assert line.render(0).plain.startswith("standby ")
    harvest.leader_id = uuid.UUID("12345678-9abc-def0-1234-56789abcdef0")
    assert line.render(1).plain.startswith("leader 12345678 ")
    harvest.state = State.CREATED
    assert line.render(2).plain.startswith("starting ")
    harvest.state = State.STOPPING
    assert line.render(2).plain.startswith("stopping ")


def test_the_rate_is_that_of_the_last_seconds():
    harvest = Harvest()
    line = StatusLine(harvest)

    def rate(now, delivered):
        harvest.delivered_records = delivered
        return re.search(r"rate (\S+)/s", line.render(now).plain)[1]

    assert rate(0, 0) == "0"
    assert rate(0, 0) == "0", "no time has passed"
    assert rate(1, 2_000) == "2,000"
    assert rate(3, 6_000) == "2,000"
    assert rate(6, 6_000) == "0"
    assert rate(7, 6_100) == "25"
    assert "delivered 6,100" in line.render(7).plain


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (7_199, "1 h"), (86_400 * 400, "400 d")]
)
def test_an_age_has_one_unit(seconds, text):
    assert age(seconds) == text


def test_foreign_text_cannot_move_the_cursor():
    assert printable("ü 🙂 \\n") == "ü 🙂 \\n"
    assert printable("a\nb\x1b[2J\u2028\u202e") == r"a\nb\x1b[2J\u2028\u202e"


def test_nobody_looks_on_where_a_line_cannot_be_redrawn(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    for terminal, answer in (("xterm-256color", True), ("dumb", False), ("", False)):
        monkeypatch.setenv("TERM", terminal)
        assert watched() is answer
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert watched() is False


def test_json_has_no_number_that_json_does_not_know():
    given = {"ages": [1.5, math.inf, (-math.inf,)], "record": {"price": math.nan, "none": None}}
    text = json_text(given)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "ages": [1.5, "inf", ["-inf"]],
        "record": {"price": "nan", "none": None},
    }
    assert json_text({"a": 1.5}, indent=1) == '{\n "a": 1.5\n}'
