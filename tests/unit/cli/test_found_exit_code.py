"""The exit code of anomalies: that of no crash, for every reader of it."""

from importlib import import_module

import pytest
from typer.testing import CliRunner

import harvest_lib.audit
from harvest_lib.cli import app
from harvest_lib.errors import FOUND_EXIT_CODE, HarvestError

pytestmark = pytest.mark.quick

OF_INTERPRETERS = {0, 1, 2, 120, 126, 127}
"""Of Python (1, 2, 120: output that cannot be flushed), of Java (1) and of a shell."""


def kinds(error=HarvestError):
    yield error
    for each in error.__subclasses__():
        yield from kinds(each)


def test_no_error_and_no_interpreter_ends_with_it():
    for module in ("harvest_lib.spark.errors", "harvest_lib.spark.quality.contracts", "harvest_lib.spark.audit.state"):
        import_module(module)
    assert FOUND_EXIT_CODE not in OF_INTERPRETERS | {each.exit_code for each in kinds()}
    assert FOUND_EXIT_CODE < 128


def test_an_audit_that_crashes_has_found_nothing(monkeypatch, tmp_path):
    def crashes(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(harvest_lib.audit, "read_topics", crashes)
    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"id": 1}\n')
    environment = {"HARVEST_LEADER_GROUP_ID": "g", "HARVEST_BOOTSTRAP_SERVERS": "127.0.0.1:1", "HARVEST_DSN": "host=a"}
    done = CliRunner().invoke(app, ["audit", "--topic", "t", "--committed-file", str(ids)], env=environment)
    assert isinstance(done.exception, RuntimeError)
    assert done.exit_code == 1
