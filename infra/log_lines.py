"""Follow a process's log for the lines of JSON in it."""

import json
from pathlib import Path
from typing import Any


class JsonLines:
    """The JSON objects that a log holds, each returned once; other lines are passed over."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = 0

    def new(self) -> list[dict[str, Any]]:
        """Return the objects on the lines completed since the last call."""
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
