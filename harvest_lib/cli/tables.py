"""Prints lines and tables of the commands. Values are never cut off, so that they can be copied.

- Output that is not a terminal: a table as wide as needed, without wrapped lines.
- A terminal that is wide enough: a table.
- A terminal that is too narrow: a line for each column of each row. The terminal wraps a line that is too long, so that
  a value can still be selected as a whole.
"""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harvest_lib.cli.terminal import printable

Cell = str | tuple[str, str] | Text
"""Contents of a table's cell: unchecked text, unchecked text with a style, or a `Text` that is printed unchanged."""

_ENOUGH = 100_000


def print_line(*parts: str | tuple[str, str], err: bool = False) -> None:
    """Print a line that consists of `parts`. Each part is a text, or a text with a style."""
    Console(stderr=err, highlight=False).print(Text.assemble(*parts), soft_wrap=True)


def table_of(
    rows: Iterable[Sequence[Cell]], header: Sequence[str] = (), *, title: str = "", boxed: bool = True
) -> Table:
    """Return a table. In unchecked text, control characters are escaped and rich's markup is printed literally."""
    table = Table(*header, title=escape(title) or None, show_header=bool(header), pad_edge=boxed)
    if not boxed:
        table.box = None
    for row in rows:
        table.add_row(*map(_ready, row))
    return table


def _ready(cell: Cell) -> Text:
    if isinstance(cell, Text):
        return cell
    text, style = (cell, "") if isinstance(cell, str) else cell
    return Text(printable(text), style)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table in the form that fits the console. If the console is not a terminal, its width is set to at least
    the table's width, and stays so."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _width(table, console))
        console.print(table)
    elif _width(table, console) <= console.width:
        console.print(table)
    else:
        for line in _lines(table, console):
            console.print(line, soft_wrap=True)


class Fitting:
    """A table for `rich.live`. Long lines are folded here, not by the terminal, because `rich.live` must know the
    number of lines."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if _width(self._table, console) <= options.max_width:
            yield self._table
            return
        for line in _lines(self._table, console):
            line.overflow = "fold"
            yield line


def _width(table: Table, console: Console) -> int:
    """Return the width of a table without wrapped lines."""
    return Measurement.get(console, console.options.update(max_width=_ENOUGH), table).maximum


def _lines(table: Table, console: Console) -> Iterable[Text]:
    """Yield a table as lines. If the table has a header, each row is a block with a line for each column. If not, each
    row is a line."""
    if table.title:
        yield Text.assemble((Text.from_markup(str(table.title)).plain, "bold"))
    names = [_text(column.header, console) for column in table.columns]
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    if not table.show_header:
        broad = max((cell_len(_text(row[0], console).plain) for row in rows), default=0)
        for first, *rest in rows:
            values = Text("  ").join(_text(each, console) for each in rest)
            yield Text.assemble(_padded(_text(first, console), broad), "  ", values)
        return
    broad = max((cell_len(name.plain) for name in names), default=0)
    for number, row in enumerate(rows):
        if number:
            yield Text()
        for name, cell in zip(names, row, strict=True):
            if (value := _text(cell, console)).plain:
                yield Text.assemble((_padded(name, broad).plain, "bold"), "  ", value)


def _text(cell: RenderableType, console: Console) -> Text:
    return cell.copy() if isinstance(cell, Text) else console.render_str(str(cell))


def _padded(text: Text, width: int) -> Text:
    text.pad_right(max(0, width - cell_len(text.plain)))
    return text
