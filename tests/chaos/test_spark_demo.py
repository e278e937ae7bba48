"""Orders from files through Spark, outbox and topic into totals while each joint is killed; and parts that are broken.

Each broken part lacks one line that exactly-once rests on: the demo has to see it.
"""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from infra.demo.place import PARTITIONS, Place
from infra.demo.progress import Progress
from infra.demo_spark.run import SparkDemoPlan, run

TESTS = Path(__file__).parents[1]
JOINTS = ["driver", "workers", "connections", "leader", "consumer"]

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def demo(dsn, make_topic, bootstrap_servers, group_id, outbox, tmp_path):
    """Run the demo on an outbox and a topic of the test's own."""
    place = Place(
        dsn=dsn, bootstrap_servers=bootstrap_servers, topic=make_topic(partitions=PARTITIONS), group=group_id
    )  # fmt: skip
    return lambda plan: run(tmp_path, place, Progress(Console(file=io.StringIO())), plan)


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.long)])
def test_every_order_takes_effect_once(demo, rounds, record_property):
    report = demo(SparkDemoPlan(rounds=rounds))
    assert report["ok"], report
    assert {each["joint"]: each["kills"] for each in report["joints"]} == dict.fromkeys(JOINTS, rounds)
    assert report["rows"] == report["effects"] > 0
    record_property("rows", report["rows"])
    record_property("seconds", report["seconds"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("broken", "plan"),
    [
        ("batch-id", SparkDemoPlan(rounds=1, program=TESTS / "support" / "broken_stream.py")),
        ("offset", SparkDemoPlan(rounds=1, consumer="support.broken_totals")),
        ("fence", SparkDemoPlan(rounds=2, consumer="support.broken_totals")),
    ],
)
def test_a_part_that_is_broken_is_seen(demo, broken, plan, monkeypatch):
    monkeypatch.setenv("BROKEN", broken)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent), str(TESTS)]))
    report = demo(plan)
    assert not report["ok"]
    assert report["duplicates"] > 0
