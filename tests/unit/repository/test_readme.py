"""README stays short. Its figures and versions come from other files and agree with them."""

import re
import tomllib
from pathlib import Path

import pytest

from harvest_lib.local_stack import kafka, postgres
from harvest_lib.local_stack.jars import TESTED_SPARK

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMPARISON = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
FAULTS = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = {
    each["name"]: each["version"] for each in tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
}
MOST_WORDS = 900

MEASURED = {
    "drain of 400,000 records, records/s": ["drain, records/s"],
    "latency at 500 records/s, median and 99th percentile": [
        "latency at 500/s, median",
        "latency at 500/s, 99th percentile",
    ],
    "SIGKILL to the first later record": ["SIGKILL to the first record committed after it"],
    "repeated records after it": ["duplicates after it"],
    "CPU of the relay for 10⁶ records": ["CPU for 10⁶ records, relay"],
    "memory of the relay": ["memory, relay"],
}
"""Rows of docs/compare.md, which `make compare` writes, by the row of the README that has their figures."""
RELAYS = {"outbox-harvester": "outbox-harvester, exactly once", "Debezium": "Debezium", "goharvest": "goharvest"}


def table(page: str, heading: str) -> dict[str, dict[str, str]]:
    """Return the cells of the first table after a heading, by row and column."""
    lines = page[page.index(f"{heading}\n") :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    head, _, *rest = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rest}


def numbers(cell: str) -> list[float]:
    return [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*(?:\.\d+)?", cell)]


def is_figure(shown: float, measured: float) -> bool:
    """Return True if a figure is the measured figure, or the measured figure rounded to three digits."""
    return shown in {measured, float(f"{measured:.3g}")}


def test_it_is_short():
    assert len(README.split()) <= MOST_WORDS


def test_its_figures_are_those_that_were_measured():
    shown, measured = table(README, "## Figures"), table(COMPARISON, "<!-- comparison -->")
    assert set(shown) == set(MEASURED)
    for row, names in MEASURED.items():
        assert set(shown[row]) == set(RELAYS)
        for relay, column in RELAYS.items():
            expected = [number for name in names for number in numbers(measured[name][column])]
            found = numbers(shown[row][relay].removesuffix(" ms"))
            assert len(found) == len(expected), (row, relay)
            assert all(map(is_figure, found, expected)), (row, relay, found, expected)
    assert "--records 400000 " in COMPARISON


def test_a_figure_that_was_not_measured_is_found():
    assert is_figure(430_000, 430_481)
    assert is_figure(14_995, 14_995)
    assert not is_figure(440_000, 430_481)
    assert not is_figure(0.3, 0.2)


def test_its_figures_elsewhere_are_those_of_the_table():
    (memory,) = numbers(table(COMPARISON, "<!-- comparison -->")["memory, relay"][RELAYS["outbox-harvester"]])
    assert f"about {round(memory, -1):.0f} MB" in README
    (failover,) = numbers(table(README, "## Figures")["SIGKILL to the first later record"]["outbox-harvester"])
    chaos = (ROOT / "tests" / "chaos" / "test_failover.py").read_text(encoding="utf-8")
    (longest,) = re.findall(r"^LEADS_AT_MOST_SECONDS = ([\d.]+)$", chaos, re.MULTILINE)
    for file in (
        README,
        *((ROOT / "docs" / "images" / f"overview-{each}.svg").read_text() for each in ("light", "dark")),
    ):
        assert f"{failover} to {longest} s" in file


def test_its_faults_are_those_that_were_injected():
    found = re.search(
        r"^([\d,]+) records under (\d+) faults in .*?: (\d+) lost, .*?, (\d+) unexplained\.", FAULTS, re.M
    )
    assert found is not None
    assert found[4] == "0"
    sentence = " ".join(README.split())
    assert re.search(rf"In {found[2]} \[injected faults\].*?, {found[3]} of {found[1]} records were lost", sentence)


def test_its_versions_are_those_that_are_tested():
    shown = table(README, "## Compatibility")
    tested = {name: re.findall(r"\d+(?:\.\d+)*", row["tested"].replace("1.x", "")) for name, row in shown.items()}
    assert tested["Python"] == re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert set(tested["Postgres"]) == set(postgres.VERSIONS)
    assert set(tested["Kafka"]) == set(kafka.VERSIONS)
    assert set(tested["Spark"]) == set(TESTED_SPARK)
    assert LOCK["pyspark"].startswith(f"{tested['Spark'][0]}.")
    assert tested["Dagster"][0] == LOCK["dagster"]
    assert tested["Dagster"][1] == minimum("dagster", "dagster")
    assert LOCK["apache-airflow"].startswith(f"{tested['Airflow'][0]}.")
    assert shown["Python"]["minimum"] == PROJECT["requires-python"].removeprefix(">=").partition(",")[0]
    assert shown["Spark"]["minimum"] == minimum("spark", "pyspark")
    assert shown["Dagster"]["minimum"] == minimum("dagster", "dagster")
    assert shown["Airflow"]["minimum"] == minimum("airflow", "apache-airflow")
    allowed = PROJECT["optional-dependencies"]["airflow"][0]
    assert sorted(tested["Airflow"]) == [f"3.{minor}" for minor in range(int(re.findall(r"<3\.(\d+)", allowed)[0]))]


def minimum(extra: str, package: str) -> str:
    """Return the lowest version of a package that an extra allows."""
    (found,) = [
        each for text in PROJECT["optional-dependencies"][extra] for each in re.findall(rf"^{package}>=([\d.]+)", text)
    ]
    return found
