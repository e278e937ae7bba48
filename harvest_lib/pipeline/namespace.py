"""Filter of a writer's messages: a regular expression that matches their namespaces, by default all.

As in Transporter expressions have the syntax of Go's `regexp`, and a match anywhere counts: write `^` and `$` to match
the whole namespace. They are compiled by RE2, which has the same syntax. Python's `re` reads many of them differently:
it takes `[[:alpha:]]` and finds other text, and its `$` matches before a last line break.
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
"""One of RE2, which has no types: `search`, `fullmatch`, `groups`, `groupindex`, `pattern`."""

_ESCAPE = re.compile(r"\\Q.*?(?:\\E|$)|\\.", re.DOTALL)
_ONE_BYTE = r"\C"
"""RE2 takes it, Go does not: it can match half a character."""


def compiled(expression: str) -> Pattern:
    """Compile a regular expression of Go's. Raises ValueError, which names its fault."""
    options = re2.Options()
    options.log_errors = False  # RE2 writes them to the standard error itself
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
