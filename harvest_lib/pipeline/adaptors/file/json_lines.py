"""JSON lines: each line is a message or a row.

Promises of the writer
- `write` returns when the lines are on disk (fsync).
- A crash may leave an unfinished line, which was not acknowledged. The next write first cuts the unfinished line off,
  and logs that. A failed write cuts its own remains off at once, if the disk allows it.
- Several writers may append to the same file: each batch is contiguous. If the file was moved, a new file is created.

Promises of the reader
- Each line that ends with a line feed is read once per run. After a restart, a line is read again only if the commit
  log does not have the position after the line. Without `follow`, a last line without a line feed is read as well.
- A line that is not a message is refused; the error has the byte at which the line begins. A file is refused if it
  became shorter, if its beginning changed, or if the last line that was read changed. With `follow`, a moved file is
  read to its end. If a new file has taken its name by then, the new file is refused.

    NOOP  file/PATH  {"byte": 5120, "line": [64, 2847103372], "head": [4096, 1153265114]}
                       the byte to continue at; length and CRC-32 of the line before that byte, and of the file's head
"""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from harvest_lib.clock import unix_ms
from harvest_lib.errors import MessageRefused, PositionLost
from harvest_lib.pipeline.adaptors import Reader
from harvest_lib.pipeline.adaptors.envelope import decode, encode_all, encode_joined
from harvest_lib.pipeline.adaptors.file.options import FileReading, FileWriting
from harvest_lib.pipeline.adaptors.file.paths import file_name, held, system_errors
from harvest_lib.pipeline.bounds import Room
from harvest_lib.pipeline.logged_messages import namespaces_and_times, without_noops
from harvest_lib.pipeline.message import Op, PipelineMessage
from harvest_lib.process.durable_files import make_folder, sync_folder

_log = logging.getLogger(__name__)

_NAMESPACE = "{namespace}"
_WAIT_SECONDS = 0.2
_PIECE_BYTES = 1 << 16
_HEAD_BYTES = 4_096
_REMEDY = "bring it back, or name a file of another name: that is read from its beginning"


class JsonLinesWriter:
    """`Writer` that appends lines to a file, or to a file per namespace if the path contains `{namespace}`."""

    def __init__(self, options: FileWriting) -> None:
        self._path = options.path
        self._content = options.content
        self._files: dict[Path, BinaryIO] = {}
        self._ends: dict[Path, int] = {}
        self._names: dict[str, str] = {}

    def write(self, messages: Sequence[PipelineMessage]) -> None:
        written = without_noops(messages)
        joined = encode_joined(written, self._content, b"\n") if _NAMESPACE not in self._path else None
        if joined is not None:
            found = {self._path: b"".join(pieces.view for pieces, _ in joined)}
        else:
            lines = encode_all(written, self._content)
            found = {name: b"\n".join([*each, b""]) for name, each in self._by_name(written, lines).items()}
        for name, content in found.items():
            path = Path(name)
            with system_errors("written", path):
                self._append(path, content)

    def _by_name(self, messages: Sequence[PipelineMessage], lines: list[bytes]) -> Mapping[str, list[bytes]]:
        if _NAMESPACE not in self._path:
            return {self._path: lines} if lines else {}
        found: dict[str, list[bytes]] = defaultdict(list)
        for (namespace, _), line in zip(namespaces_and_times(messages), lines, strict=True):
            name = self._names.get(namespace)
            if name is None:
                name = self._names[namespace] = self._path.replace(_NAMESPACE, file_name(namespace))
            found[name].append(line)
        return found

    def close(self) -> None:
        for path in list(self._files):
            self._forget(path)

    def _append(self, path: Path, lines: bytes) -> None:
        if not lines:
            return
        file = self._file(path)
        try:
            with held(file.fileno()):
                self._ends[path] = self._append_to(file, path, lines)
        except OSError:
            self._forget(path)
            raise

    def _append_to(self, file: BinaryIO, path: Path, lines: bytes) -> int:
        """Append lines to a file, and return the size of the file afterwards, in bytes."""
        begin = file.seek(0, os.SEEK_END)
        if begin != self._ends.get(path):  # changed since the last write
            begin = _repair(file, path)
        try:
            view = memoryview(lines)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):  # if this fails, the next write cuts the remains off
                file.truncate(begin)
            raise
        return begin + len(lines)

    def _file(self, path: Path) -> BinaryIO:
        file = self._files.get(path)
        if file is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    return file
            self._forget(path)
        make_folder(path.parent)
        file = self._files[path] = path.open("a+b", buffering=0)
        sync_folder(path.parent)
        return file

    def _forget(self, path: Path) -> None:
        self._ends.pop(path, None)
        self._files.pop(path).close()


class JsonLinesReader(Reader):
    """`Reader` of a file of JSON lines."""

    needs_data = False

    def __init__(self, options: FileReading) -> None:
        self._options = options
        self._path = options.path
        self._place = f"file/{options.path}"
        self._line = b""

    def read(self, last: Mapping[str, PipelineMessage]) -> Iterator[Sequence[PipelineMessage]]:
        before = last.get(self._place)
        position = int(before.data["byte"]) if before is not None else 0
        with system_errors("read", self._path), self._path.open("rb") as file:
            self._require_length(file, position)
            if before is not None:
                self._require_part(file, 0, *before.data.get("head", (0, 0)))
                size, checksum = before.data["line"]
                self._require_part(file, position - size, size, checksum)
            file.seek(position)
            while True:
                is_replaced = self._options.follow and self._is_replaced(file)
                begin, line = position, self._line
                batch, position = self._batch(file, position)
                # If the line or the length changed, the file was emptied during the read, and has grown again.
                self._require_length(file, position)
                self._require_part(file, begin - len(line), len(line), crc32(line))
                if batch:
                    head = os.pread(file.fileno(), min(position, _HEAD_BYTES), 0)
                    place = {
                        "byte": position,
                        "line": [len(self._line), crc32(self._line)],
                        "head": [len(head), crc32(head)],
                    }
                    yield [*batch, PipelineMessage(Op.NOOP, unix_ms(), self._place, place)]
                elif not self._options.follow:
                    return
                elif is_replaced:
                    raise PositionLost(
                        f"{self._path} is not the file that was read",
                        evidence=f"another file has its name; {position} bytes of the old file were read, to its end",
                        next_step=_REMEDY,
                    )
                else:
                    yield []
                    time.sleep(_WAIT_SECONDS)

    def _is_replaced(self, file: BinaryIO) -> bool:
        with suppress(FileNotFoundError):  # the file was moved; a later call finds a new file of this name
            return not os.path.samestat(self._path.stat(), os.fstat(file.fileno()))
        return False

    def _require_length(self, file: BinaryIO, position: int) -> None:
        size = os.fstat(file.fileno()).st_size
        if size < position:
            raise PositionLost(
                f"{self._path} is shorter than it was",
                evidence=f"{size} bytes, of which {position} were read",
                next_step=_REMEDY,
            )

    def _require_part(self, file: BinaryIO, begin: int, size: int, checksum: int) -> None:
        if crc32(os.pread(file.fileno(), size, begin)) != checksum:
            raise PositionLost(
                f"{self._path} is not the file that was read",
                evidence=f"{size} bytes from byte {begin} on are others",
                next_step=_REMEDY,
            )

    def _batch(self, file: BinaryIO, position: int) -> tuple[list[PipelineMessage], int]:
        batch: list[PipelineMessage] = []
        room = Room(self._options.batch_rows)
        while not room.is_full:
            line = file.readline()
            if not line or (self._options.follow and not line.endswith(b"\n")):
                file.seek(position)
                break
            if line.strip():
                batch.append(self._message(line, position))
                room.take(len(line))
            self._line = line
            position += len(line)
        return batch, position

    def _message(self, line: bytes, position: int) -> PipelineMessage:
        try:
            namespace = self._options.namespace or self._path.stem
            return decode(line, self._options.content, timestamp=unix_ms(), namespace=namespace)
        except MessageRefused as error:
            raise MessageRefused(
                f"{self._path} has a line that is no message: {error.cause}",
                evidence=f"at byte {position}: {error.evidence}",
                next_step=f"correct or remove the line; {error.next_step}",
            ) from None


def _repair(file: BinaryIO, path: Path) -> int:
    """Truncate a file after its last line feed, and return its size afterwards, in bytes."""
    size = end = file.seek(0, os.SEEK_END)
    while end > 0:
        begin = max(0, end - _PIECE_BYTES)
        file.seek(begin)
        newline = file.read(end - begin).rfind(b"\n")
        if newline >= 0:
            end = begin + newline + 1
            break
        end = begin
    if end < size:
        file.truncate(end)
        os.fsync(file.fileno())
        _log.warning("unfinished_line_cut", extra={"path": str(path), "bytes": size - end})
    file.seek(end)
    return end
