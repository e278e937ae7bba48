"""Finds the lines of a log that explain why a server ended: errors, not the messages of the shutdown after them."""

import re
from pathlib import Path

_EMPTY = "its log is empty"
_READ_BYTES = 512 * 1024
_FIRST, _LAST = 3, 2

_TELLING = re.compile(
    r"\b(ERROR|FATAL|PANIC|CRITICAL)\b"
    r"|^(Caused by: )?([\w$]+\.)*\w*(Error|Exception)\b"
    r"|No space left on device|[Aa]ddress already in use|Read-only file system"
)
_ADDRESS_TAKEN = re.compile(r"address already in use|BindException|could not bind|failed to bind", re.IGNORECASE)
_TIME = re.compile(r"^[\d:., T+-]{19,}Z?( [A-Z]{3,4})?\s*")


def said_since(log: Path, start: int) -> str:
    """Return the text of a log from the byte position `start` on, at most the last 512 KiB of the log."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - _READ_BYTES))
        return file.read().decode(errors="replace")


def telling(text: str) -> str:
    """Return the first three and the last two distinct errors of a log, on one line; without errors, its last lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found: dict[str, str] = {}
    for line in lines:
        message = _TIME.sub("", line)
        if _TELLING.search(message):
            found.setdefault(message, line)
    errors = [*found.values()]
    if not errors:
        return " | ".join(lines[-5:]) or _EMPTY
    return " | ".join(errors[:_FIRST] + errors[_FIRST:][-_LAST:])


def tells_taken_address(text: str) -> bool:
    """Return True if the text of a server's log reports that its port was in use."""
    return _ADDRESS_TAKEN.search(text) is not None
