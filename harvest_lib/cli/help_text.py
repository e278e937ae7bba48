"""Help of commands, as plain text.

    Usage, the text, the options, the commands of a group, the examples

Promises
- A line is as long as the terminal is wide, at most 100 columns, and 80 in a pipe. Only examples are never wrapped, so
  that they can be copied.
- The text is ASCII if the command's own text is. Headings are bold on a terminal; nothing else depends on it.
"""

import inspect
import os
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import typer

_WIDEST = 100
_NARROW = 72
"""In a terminal that is narrower, the meaning of an option is below the option, not beside it."""
_NAMES_WIDTH = 28
_DEEP = 8

# Commands, parameters and contexts are Any: typer has no public name for their types.


def render(command: Any, context: Any) -> str:
    """Return the help of a command or of a group of commands."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    return "\n".join(_lines(command, context, width))


def paragraphs(command: Any) -> list[str]:
    """Return the paragraphs of a command's help, each on one line, without the examples."""
    found = [" ".join(each.split()) for each in _blocks(command) if not _is_example(each)]
    return [each for each in found if each not in {"", "Example:", "Examples:"}]


def examples(command: Any) -> list[str]:
    """Return the examples of a command's help. An example is an indented line, or begins with `Example:`."""
    found = "\n".join(filter(_is_example, _blocks(command))).splitlines()
    return [each.removeprefix("Example:").strip() for each in found if each.strip()]


def option_rows(command: Any, context: Any) -> list[tuple[str, str]]:
    """Return the names and the meaning of each argument and each option, arguments first."""
    shown = [each for each in command.get_params(context) if not getattr(each, "hidden", False)]
    ordered = sorted(shown, key=lambda each: each.param_type_name != "argument")
    return [(_names(each), _meaning(each, context)) for each in ordered]


def first_sentence(command: Any) -> str:
    """Return the first sentence of a command's help."""
    text = (paragraphs(command) or [""])[0]
    return text.partition(". ")[0].removesuffix(".") + "." if text else ""


def _lines(command: Any, context: Any, width: int) -> Iterator[str]:
    yield from _wrapped(usage(command), width, f"Usage: {context.command_path} ")
    for each in paragraphs(command):
        yield ""
        yield from _wrapped(each, width)
    rows = option_rows(command, context)
    for title, is_argument in (("Arguments", True), ("Options", False)):
        yield from _section(title, [row for row in rows if row[0].startswith("-") != is_argument], width)
    members = getattr(command, "commands", {})
    titles = dict.fromkeys(getattr(each, "rich_help_panel", None) or "Commands" for each in members.values())
    for title in titles:
        listed = [
            (name, first_sentence(each))
            for name, each in members.items()
            if not each.hidden and title == (getattr(each, "rich_help_panel", None) or "Commands")
        ]
        yield from _section(title, listed, width, column=max(map(len, members)) + 4)
    if found := examples(command):
        yield from ("", _heading("Examples"), *(f"  {each}" for each in found))
    if command.epilog:
        yield ""
        yield from _wrapped(" ".join(command.epilog.split()), width)


def usage(command: Any) -> str:
    """Return the arguments of a command in the order in which they are given, with the options it requires."""
    pieces = [_names(each) for each in command.params if each.param_type_name == "argument"]
    for each in command.params:
        if each.param_type_name == "option" and each.required:
            pieces.append(f"{max(each.opts, key=len)} {_value(each)}")
    return " ".join([*pieces, "[OPTIONS]", *(["COMMAND ..."] if hasattr(command, "commands") else [])])


def _section(title: str, rows: Sequence[tuple[str, str]], width: int, *, column: int = 0) -> Iterator[str]:
    """Yield a heading and the rows. `column` is the place of the meanings; without it, the names decide."""
    if not rows:
        return
    yield ""
    yield _heading(title)
    column = column or min(max(len(names) for names, _ in rows) + 4, _NAMES_WIDTH)
    if width < _NARROW and column > _NAMES_WIDTH // 2:
        column = _DEEP
    for names, meaning in rows:
        start = f"  {names}"
        if not meaning:
            yield start
        elif len(start) + 2 <= column:
            yield from _wrapped(meaning, width, start.ljust(column))
        else:
            yield start
            yield from _wrapped(meaning, width, " " * column)


def _wrapped(text: str, width: int, start: str = "") -> Iterable[str]:
    indent = " " * min(len(start), _NAMES_WIDTH)
    return textwrap.wrap(
        text, width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    ) or [start]


def _heading(title: str) -> str:
    return typer.style(f"{title}:", bold=True) if os.environ.get("TERM", "") != "dumb" else f"{title}:"


def _blocks(command: Any) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


def _is_example(block: str) -> bool:
    return block.startswith(("  ", "Example:  "))


def _names(parameter: Any) -> str:
    """Return the names of an option, short names first, with the name of its value. A flag has no value."""
    if parameter.param_type_name == "argument":
        name = _value(parameter) + ("..." if parameter.nargs == -1 else "")
        return name if parameter.required else f"[{name}]"
    names = ", ".join(sorted(parameter.opts, key=lambda each: each.startswith("--")))
    if parameter.secondary_opts:
        return f"{names} / {', '.join(parameter.secondary_opts)}"
    return names if is_flag(parameter) else f"{names} {_value(parameter)}"


def _value(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def is_flag(parameter: Any) -> bool:
    """Return True for an option without a value."""
    return bool(getattr(parameter, "is_flag", False) or getattr(parameter, "count", False))


def _meaning(parameter: Any, context: Any) -> str:
    extra = []
    if parameter.required:
        extra.append("required")
    if getattr(parameter, "show_envvar", False) and parameter.envvar:
        extra.append(f"variable {parameter.envvar}")
    default = parameter.get_default(context, call=False)
    is_shown = parameter.show_default is True and default not in (None, "", [], ()) and not callable(default)
    if is_shown and not (is_flag(parameter) and not parameter.secondary_opts):
        extra.append(f"default: {_default_text(parameter, default)}")
    extra += _bounds(parameter)
    text = " ".join((getattr(parameter, "help", None) or "").split())
    return " ".join(filter(None, (text, f"[{'; '.join(extra)}]" if extra else "")))


def _default_text(parameter: Any, default: Any) -> str:
    if parameter.secondary_opts and isinstance(default, bool):
        return str((parameter.opts if default else parameter.secondary_opts)[0])
    value = getattr(default, "value", default)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _bounds(parameter: Any) -> list[str]:
    least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if least is not None and most is not None:
        return [f"{least} to {most}"]
    if least is not None:
        return [f"at least {least}"]
    return [] if most is None else [f"at most {most}"]
