"""The log of a consumer of one's own: what the page on consumers says of it."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harvest_lib.cli.log_output import configure_logging
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.gate

PAGE = (Path(__file__).parents[3] / "docs" / "consuming.md").read_text(encoding="utf-8")
PROGRAM = """
import logging
{configured}
log = logging.getLogger("harvest_lib.consume.consumer")
log.info("shard_begins", extra={{"shard": "orders/0"}})
log.error("shard_failed", extra={{"shard": "orders/0", "reason": "the table is gone"}})
"""


def said(configured):
    program = PROGRAM.format(configured=configured)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_without_a_configuration_little_is_said():
    assert said("") == ["shard_failed"]


def test_the_call_that_the_page_names_writes_every_event_with_its_fields():
    found = re.search(r"`(configure_logging\([^`]*\))` of `([a-z_.]+)`", PAGE)
    assert found is not None
    begins, failed = map(json.loads, said(f"from {found[2]} import configure_logging; {found[1]}"))
    assert (begins["event"], begins["level"], begins["shard"]) == ("shard_begins", "info", "orders/0")
    assert (failed["event"], failed["level"], failed["reason"]) == ("shard_failed", "error", "the table is gone")


def test_on_a_console_an_error_of_several_lines_is_one_line(capsys, monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before = root.level
    error = ConfigError("no such table", next_step="make it")
    try:
        configure_logging("console", "info")
        logging.getLogger("harvest_lib").error("harvester_died", extra={"reason": str(error)})
        for handler in root.handlers:
            handler.flush()  # its thread writes
    finally:
        root.setLevel(before)
    (line,) = capsys.readouterr().err.splitlines()
    assert "no such table; next step: make it" in line
    assert "\\n" not in line
