"""Parked messages of a writer: messages for which a transform failed, as lines of JSON in a file.

Promise: a line is synced to the disk before its message counts as acknowledged. A message that is parked again after a
kill is in the file twice, with the same offset.
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
    """The file of a writer's parked messages. A single thread uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, message: PipelineMessage, reason: str) -> None:
        """Append a message, as it was before all transforms, with the reason of the failure. Raises OSError."""
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
                text = b"\n" + text  # ends a line that is incomplete after a full disk or a kill
            write_all(handle, text, size)
            os.fsync(handle)
        finally:
            os.close(handle)
        if not size:
            sync_folder(self.path.parent)  # the name of a new file has to be durable too

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the parked messages in the order of the file, each offset once. Incomplete lines are left out."""
        seen: set[int] = set()
        try:
            file = self.path.open(encoding="utf-8", errors="replace", newline="\n")
        except FileNotFoundError:
            return
        with file:
            for line in file:
                try:
                    found = json.loads(line)
                except ValueError:
                    continue
                if isinstance(found, dict) and found.get("offset") not in seen:
                    seen.add(found["offset"])
                    yield found
