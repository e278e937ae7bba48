"""The file of an audit's metrics: what the last complete audit found, and whether the last one failed."""

import time
from pathlib import Path

import pytest
from support.metrics import METRICS
from support.scraping import parsed
from typer.testing import CliRunner

from harvest_lib.audit.textfile import audit_metrics
from harvest_lib.cli import app
from harvest_lib.errors import ConfigError
from harvest_lib.telemetry import catalogue

pytestmark = pytest.mark.quick

LAST_COMPLETE = "harvest_audit_last_complete_timestamp_seconds"
TOPICS = "orders,refunds"


def complete(file, topics=("refunds", "orders", "orders"), **counts):
    with audit_metrics(file, topics) as found:
        found.update(counts)
    return parsed(file.read_text())


def failed(file, error=RuntimeError):
    with pytest.raises(error), audit_metrics(file, ["orders", "refunds"]) as found:
        found["lost"] = 9
        raise error
    return parsed(file.read_text())


def test_a_complete_audit_writes_all_it_found_and_when(tmp_path):
    began = time.time()
    found = complete(tmp_path / "audit.prom", lost=2, reordered=0)
    assert began <= found.pop((LAST_COMPLETE, (TOPICS,))) <= time.time()
    assert found == {
        ("harvest_audit_findings", ("lost", TOPICS)): 2,
        ("harvest_audit_findings", ("reordered", TOPICS)): 0,
        ("harvest_audit_failed", (TOPICS,)): 0,
    }
    assert [each.name for each in tmp_path.iterdir()] == ["audit.prom"], "nothing else is left"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_audit_that_fails_leaves_what_the_last_complete_one_found(tmp_path, error):
    file = tmp_path / "audit.prom"
    before = complete(file, lost=2)
    assert failed(file, error) == {**before, ("harvest_audit_failed", (TOPICS,)): 1}
    assert failed(file, error) == {**before, ("harvest_audit_failed", (TOPICS,)): 1}
    again = complete(file, lost=0)
    assert again["harvest_audit_findings", ("lost", TOPICS)] == again["harvest_audit_failed", (TOPICS,)] == 0
    assert again[LAST_COMPLETE, (TOPICS,)] > before[LAST_COMPLETE, (TOPICS,)]


@pytest.mark.parametrize("left", [None, b"", b"no metrics {", b"\xff", b"harvest_audit_findings 3\n"])
def test_a_first_audit_that_fails_claims_nothing(tmp_path, left):
    file = tmp_path / "audit.prom"
    if left is not None:
        file.write_bytes(left)
    assert failed(file) == {("harvest_audit_failed", (TOPICS,)): 1}


def test_a_file_is_as_the_catalogue_says_and_a_label_is_bounded(tmp_path):
    found = complete(tmp_path / "audit.prom", topics=[f"topic-{number}" for number in range(500)], lost=1)
    assert {name for name, _ in found} == {each.name for each in catalogue.OF_AUDITS} <= METRICS.keys()
    assert {len(labels[-1]) for _, labels in found} == {200}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("", "Is a directory"), ("none/audit.prom", "No such file"), ("file/audit.prom", "Not a directory")],
)
def test_a_file_that_cannot_be_written_is_named_before_anything_is_read(tmp_path, name, reason):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=reason) as raised, audit_metrics(tmp_path / name, ["orders"]):
        pytest.fail("it was read")
    assert str(tmp_path / name) in raised.value.evidence
    assert "a folder that exists" in raised.value.next_step
    assert ask(tmp_path, tmp_path / name) == "--metrics-file"


def test_a_folder_that_may_not_be_written_is_named():
    with pytest.raises(ConfigError, match="cannot be written"), audit_metrics(Path("/proc/audit.prom"), ["orders"]):
        pytest.fail("it was read")


def test_a_folder_that_goes_meanwhile_is_named(tmp_path):
    (tmp_path / "metrics").mkdir()
    with pytest.raises(ConfigError, match="No such file"), audit_metrics(tmp_path / "metrics" / "a.prom", ["orders"]):
        (tmp_path / "metrics").rmdir()
    (tmp_path / "metrics").mkdir()
    with pytest.raises(ZeroDivisionError), audit_metrics(tmp_path / "metrics" / "a.prom", ["orders"]):
        (tmp_path / "metrics").rmdir()
        raise ZeroDivisionError


def ask(tmp_path, file):
    """Return the option or the setting that the command refuses; its configuration is none."""
    done = CliRunner().invoke(
        app, ["audit", "-t", "orders", "-f", str(tmp_path / "none.yaml"), "--metrics-file", str(file)]
    )
    if done.exit_code == 2:
        return "--metrics-file" if "does not end in .prom" in done.output else done.output
    assert isinstance(done.exception, ConfigError)
    return done.exception.field


@pytest.mark.parametrize("name", ["audit.txt", "audit", "audit.PROM", "audit.prom.bak"])
def test_a_name_that_the_collector_does_not_read_is_refused_before_anything_is_read(tmp_path, name):
    words = r"only names that end in \.prom"
    with pytest.raises(ConfigError, match=words) as raised, audit_metrics(tmp_path / name, ["orders"]):
        pytest.fail("it was read")
    assert raised.value.next_step.startswith("name the file 'audit")
    assert raised.value.next_step.endswith(".prom'")
    assert ask(tmp_path, tmp_path / name) == "--metrics-file"
    assert list(tmp_path.iterdir()) == []


def test_an_audit_that_cannot_begin_has_failed(tmp_path):
    assert ask(tmp_path, tmp_path / "audit.prom") != "--metrics-file"
    assert parsed((tmp_path / "audit.prom").read_text()) == {("harvest_audit_failed", ("orders",)): 1}
