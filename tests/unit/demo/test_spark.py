"""The comparison that the demo of Spark ends with notices what it is for."""

import pytest

from infra.demo.comparing import differences
from infra.demo_spark.comparison import summary, total_differences
from infra.demo_spark.orders import Order

pytestmark = pytest.mark.quick

WRITTEN = [Order(1, "a", 100), Order(2, "a", 50), Order(3, "b", 7)]
TOTALS = {"a": (2, 150), "b": (1, 7)}
KILLS = [{"joint": "driver", "kills": 2, "longest_seconds": 1.0}, {"joint": "leader", "kills": 1}]


def report(written=WRITTEN, business=WRITTEN, records=WRITTEN, effects=TOTALS, kills=KILLS):
    places = {
        "business": differences(written, business),
        "records": differences(written, records),
        "effects": total_differences(written, effects),
    }
    return summary(places, len(written), kills)


def test_what_is_equal_in_all_places_is_fine():
    assert report()["ok"]
    assert {name: report()[name] for name in ("rows", "effects", "lost", "duplicates", "kills")} == {
        "rows": 3, "effects": 3, "lost": 0, "duplicates": 0, "kills": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "lost", "duplicates", "wrong_sums"),
    [
        ({"business": WRITTEN[:2]}, 1, 0, 0),
        ({"business": [*WRITTEN, WRITTEN[0]]}, 0, 1, 0),
        ({"records": [*WRITTEN, Order(4, "c", 1)]}, 0, 1, 0),
        ({"records": [*WRITTEN[:2], Order(3, "b", 8)]}, 1, 1, 0),
        ({"effects": {"a": (2, 150)}}, 1, 0, 0),
        ({"effects": {"a": (4, 300), "b": (1, 7)}}, 0, 2, 1),
        ({"effects": {"a": (1, 150), "b": (2, 7)}}, 1, 1, 2),
        ({"effects": {"a": (2, 151), "b": (1, 7)}}, 0, 0, 1),
        ({"effects": {**TOTALS, "c": (1, 1)}}, 0, 1, 0),
    ],
)
def test_what_is_lost_too_much_or_another_is_counted(changed, lost, duplicates, wrong_sums):
    found = report(**changed)
    assert not found["ok"]
    assert (found["lost"], found["duplicates"], found["wrong_sums"]) == (lost, duplicates, wrong_sums)


def test_a_run_that_wrote_nothing_or_killed_nothing_is_not_fine():
    assert not report([], [], [], {})["ok"]
    assert not report(kills=[])["ok"]
    assert not report(kills=[*KILLS, {"joint": "consumer", "kills": 0}])["ok"]
