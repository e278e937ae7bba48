"""The levels of `--log-level`: those of the file, for every command that has the option."""

import logging

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.cli.log_output import configure_logging
from harvest_lib.errors import ConfigError
from harvest_lib.process.logging_levels import LOGGING_LEVELS

pytestmark = pytest.mark.quick


def commands(command, path=()):
    """Yield the path of each command that has the option."""
    if any("--log-level" in each.opts for each in command.params):
        yield path
    for name, member in getattr(command, "commands", {}).items():
        yield from commands(member, (*path, name))


WITH_LEVEL = sorted(commands(get_command(app)))


def test_there_are_commands_with_the_option():
    assert {("run",), ("pipeline", "run"), ("pipeline", "resume")} <= set(WITH_LEVEL)


@pytest.mark.parametrize("path", WITH_LEVEL, ids=" ".join)
@pytest.mark.parametrize("level", [*filter(None, LOGGING_LEVELS), "ALL", "Trace"])
def test_each_level_is_taken(path, level, tmp_path):
    """The command goes on to its file, which is missing."""
    done = CliRunner().invoke(app, [*path, "-f", str(tmp_path / "none.yaml"), "--log-level", level])
    assert isinstance(done.exception, ConfigError), done.output


@pytest.mark.parametrize("path", WITH_LEVEL, ids=" ".join)
@pytest.mark.parametrize("level", ["loud", "10", "info ", "notset", "\udcff"])
def test_another_word_is_a_usage_error_that_lists_the_levels(path, level, tmp_path):
    done = CliRunner().invoke(app, [*path, "-f", str(tmp_path / "none.yaml"), "--log-level", level])
    assert done.exit_code == 2
    said = " ".join(done.output.replace("│", " ").split())
    assert all(name in said for name in LOGGING_LEVELS)


@pytest.mark.parametrize(("level", "ours"), LOGGING_LEVELS.items())
def test_a_program_of_ones_own_has_the_same_levels(level, ours, monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before = root.level
    try:
        configure_logging("json", level)
        assert logging.getLevelName(root.level) == ours.upper()
    finally:
        root.setLevel(before)


def test_a_program_of_ones_own_is_told_the_levels():
    with pytest.raises(ConfigError, match="'loud' is no level of the log") as caught:
        configure_logging("json", "loud")
    assert "trace" in caught.value.next_step
