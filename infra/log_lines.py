"""Reads the JSON lines of a log while a process writes the log."""

import json
from pathlib import Path
from typing import Any


class JsonLines:
    """Reads each JSON object of a log once. Other lines are skipped."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = 0

    def new(self) -> list[dict[str, Any]]:
        """Return the objects in the lines that were completed since the last call."""
        if not self._log.exists():
            return []
        with self._log.open("rb") as file:
            file.seek(self._position)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        found = []
        for line in whole.splitlines():
            if line.startswith(b"{"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue
        return found
