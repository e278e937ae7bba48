"""Tables of the commands: nothing that somebody may copy is cut or broken, however narrow the terminal is."""

import io
import re

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harvest_lib.cli.tables import Fitting, print_table, table_of

pytestmark = pytest.mark.quick

URL = "http://127.0.0.1:39281/locations/definitions.py/sensors/harvester_supervisor?selectedTab=evaluations"
LEADER = "3f1c7b1e-8f0e-4f6c-9d40-2b8a6a0b8f11"


def listed():
    table = Table("server", "leader", "url", "state")
    table.add_row("dagster", LEADER, Text(URL), "[green]running[/]")
    table.add_row("kafka-1", "", "", "[red]ended[/]")
    return table


def described():
    table = Table(show_header=False, title="outbox billing.outbox")
    table.add_row("leader", f"host-17_{LEADER}@127.0.0.1")
    table.add_row("note", Text(URL, "yellow"))
    return table


def printed(table, *, width, terminal=True):
    file = io.StringIO()
    print_table(table, Console(file=file, width=width, force_terminal=terminal, highlight=False, color_system=None))
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())


@pytest.mark.parametrize("width", [40, 80, 120, 400])
@pytest.mark.parametrize("make", [listed, described])
def test_what_one_copies_is_whole(make, width):
    shown = printed(make(), width=width)
    assert URL in shown
    assert LEADER in shown
    assert "…" not in shown


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_gets_a_line_for_each_column(width):
    lines = printed(listed(), width=width).splitlines()
    assert lines == [
        "server  dagster",
        f"leader  {LEADER}",
        f"url     {URL}",
        "state   running",
        "",
        "server  kafka-1",
        "state   ended",
    ]
    assert printed(described(), width=width).splitlines()[0] == "outbox billing.outbox"


def test_a_wide_terminal_gets_a_table():
    assert "┃ server" in printed(listed(), width=400)


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("make", [listed, described])
def test_a_file_or_a_pipe_gets_each_row_in_one_line(make, width):
    lines = printed(make(), width=width, terminal=False).splitlines()
    assert sum(URL in line for line in lines) == 1
    (row,) = [line for line in lines if "dagster" in line or "note" in line]
    assert URL in row
    assert len({len(line) for line in lines if line[:1] in "┏┡│└┌"}) == 1, "one table"


def test_foreign_text_is_no_markup_and_moves_no_cursor():
    table = table_of([("[red]key", ("a\x1b[2J", "bold"))], title="[outbox]", boxed=False)
    assert printed(table, width=80).split() == ["[outbox]", "[red]key", r"a\x1b[2J"]


@pytest.mark.parametrize("width", [40, 80])
def test_a_live_display_folds_what_is_too_long_and_cuts_nothing(width):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, highlight=False, color_system=None)
    with Live(Fitting(described()), console=console, auto_refresh=False) as live:
        live.refresh()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\s", "", file.getvalue())
    assert URL in shown
    assert max(map(len, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).splitlines())) <= width
