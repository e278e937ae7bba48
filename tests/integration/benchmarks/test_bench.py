"""The benchmarks run, and write what later ones are added to; their findings are not judged here."""

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from harvest_lib.cli import app
from tests.benchmarks.backlog import Servers
from tests.benchmarks.report import at_least, at_most, show, write
from tests.benchmarks.scenarios import SCENARIOS, Size

pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", ["drain-barrier", "drain-pipelined", "one-key", "sequencer", "consumer"])
def test_a_scenario_is_measured_against_its_floor(dsn, bootstrap_servers, make_topic, tmp_path, name):
    servers = Servers(dsn=dsn, bootstrap_servers=bootstrap_servers, topic=make_topic(partitions=8))
    results = list(SCENARIOS[name](servers, Size(records=2_000, rounds=1)))
    write(results, tmp_path / "bench" / "report.json")
    first, *others = json.loads((tmp_path / "bench" / "report.json").read_text())
    assert set(first) == {"name", "value", "unit", "floor", "ratio", "ratios", "target", "met"}
    assert first["name"] == name
    assert first["value"] / first["floor"] == pytest.approx(first["ratio"])
    more = {
        "drain-barrier": ["drain-barrier-statements"],
        "drain-pipelined": ["drain-pipelined-statements"],
        "one-key": ["one-key-and-purge"],
        "consumer": ["consumer-groups", "consumer-rate", "consumer-4-shards", "consumer-groups-4-shards"],
    }
    assert [other["name"] for other in others] == more.get(name, [])


@pytest.mark.spark
@pytest.mark.long
def test_both_ways_of_writing_by_spark_are_measured_against_appends(dsn):
    servers = Servers(dsn=dsn, bootstrap_servers="", topic="")
    found = list(SCENARIOS["spark-sink"](servers, Size(records=100, rounds=1)))
    targets = {"spark-sink": 0.8, "spark-format": 0.8, "spark-sink-business": 0.65, "spark-format-business": 0.65}
    assert {each.name: each.target for each in found if each.target is not None} == targets
    assert [each.name for each in found] == [
        f"{name}{suffix}" for name in targets for suffix in ("", "-of-bare", "-fixed")
    ]
    assert all(each.floor for each in found)


def test_a_target_is_of_the_ratio_or_of_the_value():
    found = [
        at_least("fast", 60.0, "records/s", floor=100.0, ratio=0.6, ratios=(0.58, 0.61), target=0.5),
        at_least("slow", 40.0, "records/s", floor=100.0, ratio=0.4, target=0.5),
        at_least("shown", 40.0, "records/s", floor=100.0, ratio=0.4),
        at_most("short", 0.9, "s", target=1.0),
        at_most("long", 1.1, "s", target=1.0),
    ]
    assert [result.met for result in found] == [True, False, None, True, False]
    console = Console(record=True, width=100)
    show(found, console)
    shown = console.export_text()
    assert shown.count("missed") == 2
    assert "0.60 (0.58-0.61)" in shown
    assert "≥ 0.5" in shown
    assert "≤ 1" in shown


def test_a_scenario_that_does_not_exist_is_a_usage_error():
    result = CliRunner().invoke(app, ["bench", "--only", "nothing"])
    assert result.exit_code == 2
    assert "drain-barrier" in result.output
