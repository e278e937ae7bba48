"""Messages that a transform failed at, parked by a writer's policy: lines of JSON in a file beside its offsets.

Promise: a line is on the disk before its message counts as acknowledged. A message that is parked again after a kill is
in the file twice, under the same offset.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harvest_lib.pipeline import extended_json
from harvest_lib.pipeline.commit_log.files import read_at, write_all
from harvest_lib.pipeline.message import PipelineMessage
from harvest_lib.process.durable_files import sync_folder


class ParkedMessages:
    """The file of a writer. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, message: PipelineMessage, reason: str) -> None:
        """Park a message, as it was before any transform."""
        line = {
            "offset": message.offset,
            "namespace": message.namespace,
            "op": message.op.name.lower(),
            "timestamp": message.timestamp,
            "reason": reason,
            "data": extended_json.dumps(message.data).decode(),
        }
        text = json.dumps(line, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            size = os.fstat(handle).st_size
            if size and read_at(handle, 1, size - 1) != b"\n":
                text = b"\n" + text  # ends a line that a full disk or a kill cut short
            write_all(handle, text, size)
            os.fsync(handle)
        finally:
            os.close(handle)
        if not size:
            sync_folder(self.path.parent)  # a new file's name has to be on the disk, too

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the parked messages, in order, each offset once."""
        seen: set[int] = set()
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
        except FileNotFoundError:
            return
        for line in lines:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and found.get("offset") not in seen:
                seen.add(found["offset"])
                yield found
