"""Filter of a writer's messages: a regular expression for their namespaces, by default `.*`.

As in Transporter, expressions have the syntax of Go's `regexp`, and may match anywhere in the namespace: `^` and `$`
match the whole namespace. RE2, which has the same syntax, compiles the expressions. Python's `re` gives another meaning
to many of them: it accepts `[[:alpha:]]` but matches other text, and its `$` also matches before a final line break.
"""

import re
from typing import Any, TypeAlias

from harvest_lib.errors import PipelineError, install_hint

try:
    import re2
except ImportError as missing:
    raise PipelineError(
        "pipelines need the package google-re2, which is not installed",
        evidence=str(missing),
        next_step=install_hint("pipeline"),
    ) from missing

EVERYTHING = ".*"

Pattern: TypeAlias = Any
"""A compiled pattern of RE2, which has no type hints: `search`, `fullmatch`, `groups`, `groupindex`, `pattern`."""

_ESCAPE = re.compile(r"\\Q.*?(?:\\E|$)|\\.", re.DOTALL)
_ONE_BYTE = r"\C"
"""An escape that RE2 accepts and Go refuses: it matches a single byte, which may be a part of a character."""


def compiled(expression: str) -> Pattern:
    """Compile a regular expression in Go's syntax. Raises ValueError with the fault of an invalid expression."""
    options = re2.Options()
    options.log_errors = False  # RE2 would write errors to the standard error
    try:
        pattern = re2.compile(expression, options)
    except re2.error as error:
        said = error.args[0]
        raise ValueError(_refusal(said.decode(errors="replace") if isinstance(said, bytes) else said)) from error
    except UnicodeEncodeError as error:
        raise ValueError(_refusal("it has a lone surrogate")) from error
    if _ONE_BYTE in _ESCAPE.findall(expression):
        raise ValueError(_refusal(f"invalid escape sequence: {_ONE_BYTE}"))
    return pattern


def _refusal(what: str) -> str:
    return f"is not a regular expression of Go's `regexp`: {what}"
