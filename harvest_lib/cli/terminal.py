"""The terminal: whether it can redraw a line, and how foreign text is made safe to print."""

import os
import sys


def watched() -> bool:
    """Tell whether standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown", ""}


def printable(text: str) -> str:
    """Return foreign text with what could move the cursor, or pass for another line, spelled out."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def age(seconds: float) -> str:
    """Return a length of time in its largest unit, rounded down."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
