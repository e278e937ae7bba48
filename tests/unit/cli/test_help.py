"""Help reads well in a narrow terminal, in a pipe, without colour and without UTF-8, for every command."""

import io
import re
from contextlib import redirect_stdout

import pytest
import typer
from typer.main import get_command

from harvest_lib import cli
from harvest_lib.cli import help_text
from harvest_lib.cli.help_text import is_flag

pytestmark = pytest.mark.quick

COMMANDS = get_command(cli.app)
PANELS = ["Set up", "Run", "Operate", "Verify", "Local stack", "Development"]
VALUE = re.compile(r"[A-Z][A-Z:=/.]*|[a-z0-9_.]+(\|[a-z0-9_.]+)+|(beginning\|now\|SNAPSHOT(\|mirror)?)")


def walk(command, path=()):
    """Yield the path of each command and group, with the command."""
    yield path, command
    for name, member in getattr(command, "commands", {}).items():
        yield from walk(member, (*path, name))


ALL = dict(walk(COMMANDS))
every_command = pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "harvest")


@pytest.fixture
def shown(monkeypatch):
    """Run the command with `--help` in a pipe, and return what it prints."""

    def run(path, width=80, option="--help"):
        monkeypatch.setenv("COLUMNS", str(width))
        out = io.StringIO()
        with redirect_stdout(out), pytest.raises(SystemExit) as ended:
            COMMANDS.main([*path, option], prog_name="harvest")
        assert ended.value.code == 0
        return out.getvalue()

    return run


@pytest.mark.parametrize("width", [60, 80, 200])
@every_command
def test_lines_fit_and_are_ascii(path, width, shown):
    text = shown(path, width)
    assert text.isascii(), [each for each in text if not each.isascii()]
    assert "\x1b" not in text, "no colour in a pipe"
    lines = text.partition("Examples:")[0].splitlines()
    wide = [each for each in lines if len(each) > min(width, 100)]
    assert wide == [] or all(" -" in each and len(each) < 90 for each in wide), "only names of options stay whole"
    assert [each for each in lines if each != each.rstrip()] == []


@every_command
def test_the_short_option_shows_the_same(path, shown):
    assert shown(path, option="-h") == shown(path)


@every_command
def test_values_have_a_name_and_flags_have_none(path, shown):
    text = shown(path)
    assert "<" not in text.partition("Examples:")[0], "types of Python"
    for each in ALL[path].params:
        if not is_flag(each):
            assert VALUE.fullmatch(each.metavar or each.name.upper()), each.opts


@every_command
def test_examples_are_one_a_line_and_whole(path, shown):
    command = ALL[path]
    if hasattr(command, "commands"):
        return
    found = shown(path, 60).partition("Examples:\n")[2].splitlines()
    assert found == [f"  {each}" for each in help_text.examples(command)] != []
    assert all(f"harvest {' '.join(path)}" in each for each in found)
    assert len(set(found)) == len(found)


def test_the_commands_are_under_titles_in_order(shown):
    titles = [line.removesuffix(":") for line in shown(()).splitlines() if re.fullmatch(r"[A-Z].*:", line)]
    assert titles == ["Options", *PANELS]
    panels = {name: each.rich_help_panel for name, each in COMMANDS.commands.items()}
    assert set(panels.values()) == set(PANELS)
    assert [name for name, panel in panels.items() if panel == "Development"] == [*cli._CHECKOUT_ONLY]


def test_outside_a_clone_its_commands_are_not_listed(shown, monkeypatch):
    others = {name: each for name, each in COMMANDS.commands.items() if name not in cli._CHECKOUT_ONLY}
    monkeypatch.setattr(COMMANDS, "commands", others)
    assert "Development" not in shown(())
    assert not [name for name in cli._CHECKOUT_ONLY if f"  {name} " in shown(())]


def test_headings_are_bold_on_a_terminal_that_can(monkeypatch):
    context = typer.Context(ALL["run",], info_name="run")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[1mOptions:\x1b[0m" in help_text.render(ALL["run",], context)
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in help_text.render(ALL["run",], context)


@pytest.mark.parametrize(
    ("path", "option", "meaning"),
    [
        (("pump",), "-k, --keys N", "required; at least 1"),
        (("pump",), "--transaction N", "default: 20; 1 to 100000"),
        (("run",), "--alive-file FILE", "variable HARVEST_ALIVE_FILE"),
        (("run",), "--drain", ""),
        (("grants", "kafka"), "--create / --no-create", "default: --create"),
        (("park", "drop"), "[ID...]", ""),
        (("partition",), "KEY...", "required"),
    ],
)
def test_an_option_shows_its_value_its_bounds_and_its_default(path, option, meaning):
    rows = dict(help_text.option_rows(ALL[path], typer.Context(ALL[path], info_name=path[-1])))
    assert rows[option].endswith(f"[{meaning}]") if meaning else "[" not in rows[option]
