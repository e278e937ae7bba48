"""The benchmarks run, and write what later ones are added to; their findings are not judged here."""

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.errors import NothingChecked
from harvest_lib.native import implementation
from tests.benchmarks import latency, native_floors
from tests.benchmarks.__main__ import measured
from tests.benchmarks.backlog import Servers
from tests.benchmarks.report import LeftOut, at_least, at_most, show, write
from tests.benchmarks.scenarios import SCENARIOS, Size

pytestmark = pytest.mark.full


@pytest.fixture
def measurable(dsn, bootstrap_servers, make_topic):
    return Servers(dsn=dsn, bootstrap_servers=bootstrap_servers, topic=make_topic(partitions=8))


@pytest.mark.parametrize("name", ["drain-barrier", "drain-pipelined", "one-key", "sequencer", "consumer"])
def test_a_scenario_is_measured_against_its_floor(measurable, tmp_path, name):
    results = list(SCENARIOS[name](measurable, Size(records=2_000, rounds=1)))
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


def test_latency_has_a_leg_for_each_wait_of_a_record(measurable, monkeypatch):
    for name, value in {"_RATES": (50,), "_SECONDS": 2, "_SETTLE_SECONDS": 1, "_TRANSACTIONS": 100}.items():
        monkeypatch.setattr(latency, name, value)
    names = {each.name for each in SCENARIOS["latency"](measurable, Size(records=200, rounds=1))}
    assert {f"latency-50-{delivery}-{leg}" for delivery in latency._MORE_MILLISECONDS for leg in latency.LEGS} <= names


@pytest.fixture
def lacking(monkeypatch):
    """Return what takes the compiler, or that and what it built, from this machine."""
    asked = (native_floors.unavailable, implementation)

    def lack(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        for each in asked:
            each.cache_clear()

    yield lack
    for each in asked:
        each.cache_clear()


@pytest.mark.skipif(implementation().library is None, reason="there is no native library here")
def test_without_a_compiler_the_floors_are_left_out_and_the_rest_is_measured(measurable, lacking):
    lacking(CC="no-such-compiler")
    results, (floors,) = measured("drains-snapshot", measurable, Size(records=200, rounds=1))
    assert "floor-read, floor-produce, floor-both-at-once" in floors.name
    assert "no-such-compiler" in str(floors)
    names = {each.name for each in results}
    assert {"drain-snapshot-transactional-native-to-python", "cpu-barrier-native", "cpu-barrier-python"} <= names
    assert not [each for each in names if each.startswith("floor-") or each.endswith("-to-both")]


def test_without_a_native_library_too_python_is_measured(measurable, lacking):
    lacking(CC="no-such-compiler", HARVEST_IMPL="python")
    results, left_out = measured("drains-snapshot", measurable, Size(records=200, rounds=1))
    assert [each.name for each in left_out][1:] == ["drain-snapshot-*-native, cpu-*-native"]
    assert "no native library" in left_out[1].reason
    assert [each.name for each in results] == [
        "cpu-transactional-python",
        "cpu-pipelined-python",
        "cpu-barrier-python",
        "drain-snapshot-transactional-to-pipelined",
    ]
    results, _ = measured("drains-mark", measurable, Size(records=200, rounds=1))
    assert [each.name for each in results] == ["drain-mark-barrier-python"]


def test_a_scenario_that_left_all_out_is_a_failure(monkeypatch):
    monkeypatch.setitem(SCENARIOS, "nothing", lambda *_: iter([LeftOut(name="floor", reason="no compiler")]))
    with pytest.raises(NothingChecked, match="floor: no compiler"):
        measured("nothing", Servers(dsn="", bootstrap_servers="", topic=""), Size(records=1, rounds=1))


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
