"""Text and numbers as the terminal, or a reader of JSON, takes them."""

import json
import math

import pytest

from harvest_lib.cli.terminal import json_text

pytestmark = pytest.mark.quick


def test_json_has_no_number_that_json_does_not_know():
    given = {"ages": [1.5, math.inf, (-math.inf,)], "record": {"price": math.nan, "none": None}}
    text = json_text(given)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "ages": [1.5, "inf", ["-inf"]],
        "record": {"price": "nan", "none": None},
    }
    assert json_text({"a": 1.5}, indent=1) == '{\n "a": 1.5\n}'
