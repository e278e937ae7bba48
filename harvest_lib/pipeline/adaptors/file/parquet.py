"""Parquet files: each batch of a namespace is a file in the namespace's folder: `00000001.parquet` and so on.

Besides the columns of the data, a row has `_op`, `_timestamp` and `_offset` (in the commit log). Within a namespace,
files and the rows in them are in order of time: the last row of a key is its current state. If the last row is a
delete, the key has no row any more. A field is null if a message lacks it and another message of the batch has it. If
the values of a column have several types, or a type that Parquet does not have, the column is text: extended JSON,
marked in the column's metadata.

Promises of the writer
- `write` returns when the files are on disk under their final names. A file is written under a temporary name, synced
  and renamed; then the folder is synced.
- No file is ever overwritten, and no unfinished file is visible.

Promises of the reader
- Files are read in the order of their names, each at least once. A file is read again only if the commit log does not
  have the position after the file.
- Reading stops with an error if the file that was read last has changed.

    NOOP  file/FOLDER  {"file": "00000007.parquet", "size": 5120, "checksum": 2847103372}
                             the file that was read last, its size in bytes, and the CRC-32 of its last 64 KiB
"""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

from harvest_lib.clock import unix_ms
from harvest_lib.errors import AdaptorError, MessageRefused, PositionLost, install_hint
from harvest_lib.pipeline.adaptors import Reader, Writer
from harvest_lib.pipeline.adaptors.file.options import FileReading, FileWriting
from harvest_lib.pipeline.adaptors.file.parquet_rows import encoded_columns, rows_of
from harvest_lib.pipeline.adaptors.file.paths import file_name, held_folder, namespace_of, system_errors
from harvest_lib.pipeline.bounds import Room, size_of
from harvest_lib.pipeline.extended_json import dumps, loads
from harvest_lib.pipeline.message import Op, PipelineMessage
from harvest_lib.process.durable_files import make_folder, sync_folder

_log = logging.getLogger(__name__)

_OURS = ("_op", "_timestamp", "_offset")
_JSON = {b"harvest": b"extended-json"}
_ENDING = ".parquet"
_UNFINISHED = ".unfinished"
_WAIT_SECONDS = 0.2
_END_BYTES = 1 << 16
_PLAIN = {bool, int, float, str, bytes}
_OPS = {each.name.lower(): each for each in Op}


class ParquetWriter(Writer):
    """`Writer` that adds Parquet files to folders."""

    def __init__(self, options: FileWriting) -> None:
        self._folder = Path(options.path)
        self._next: dict[Path, int] = {}
        self._pyarrow = _pyarrow()

    def write(self, messages: Sequence[PipelineMessage]) -> None:
        by_namespace: dict[str, list[PipelineMessage]] = defaultdict(list)
        for message in messages:
            if message.op is not Op.NOOP:
                by_namespace[message.namespace].append(message)
        tables = {namespace: self._table(of_one) for namespace, of_one in by_namespace.items()}
        for namespace, table in tables.items():
            folder = self._folder / file_name(namespace)
            with system_errors("written", folder):
                make_folder(folder)
                with held_folder(folder):
                    self._add(folder, table)

    def _add(self, folder: Path, table: Any) -> None:
        number = self._next[folder] if folder in self._next else self._open(folder)
        path = folder / f"{number:08}{_ENDING}"
        beside = path.with_suffix(_UNFINISHED)
        try:
            with beside.open("wb") as file:
                self._pyarrow.parquet.write_table(table, file)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                raise FileExistsError(f"{path.name} is there, made by another")
            beside.rename(path)
        except OSError:
            self._next.pop(folder, None)
            beside.unlink(missing_ok=True)
            raise
        self._next[folder] = number + 1
        sync_folder(folder)

    def _open(self, folder: Path) -> int:
        for left in folder.glob(f"*{_UNFINISHED}"):
            left.unlink()
        numbers = [int(each.stem) for each in folder.glob(f"*{_ENDING}") if each.stem.isdigit()]
        return max(numbers, default=0) + 1

    def _table(self, messages: Sequence[PipelineMessage]) -> Any:
        pa = self._pyarrow
        names = list(dict.fromkeys(name for message in messages for name in message.data))
        if taken := sorted(set(_OURS) & set(names)):
            raise MessageRefused(
                f"Parquet files have columns of their own named {', '.join(taken)}",
                evidence=f"messages {messages[0].offset} to {messages[-1].offset}",
                next_step="rename the field with the transform `rename`",
            )
        ours = [
            pa.array([message.op.name.lower() for message in messages], pa.string()),
            pa.array([message.timestamp for message in messages], pa.timestamp("ms", tz="UTC")),
            pa.array([message.offset for message in messages], pa.int64()),
        ]
        columns = [self._column(name, [message.data.get(name) for message in messages]) for name in names]
        fields = [pa.field(name, array.type) for name, array in zip(_OURS, ours, strict=True)]
        arrays = [*ours, *(array for _, array in columns)]
        return pa.Table.from_arrays(arrays, schema=pa.schema([*fields, *(field for field, _ in columns)]))

    def _column(self, name: str, values: Sequence[Any]) -> tuple[Any, Any]:
        pa = self._pyarrow
        kinds = {type(each) for each in values if each is not None}
        if len(kinds) <= 1 and kinds <= _PLAIN | {Decimal, datetime}:
            # A value may not fit the type: a whole number beyond 64 bits, a Decimal that is infinite or not a number.
            with suppress(TypeError, ValueError, OverflowError, pa.ArrowException):
                array = pa.array(values, pa.timestamp("us", tz="UTC") if datetime in kinds else None)
                return pa.field(name, array.type), array
        texts = [None if each is None else dumps({"": each})[len(b'{"":') : -1].decode() for each in values]
        return pa.field(name, pa.string(), metadata=_JSON), pa.array(texts, pa.string())


class ParquetReader(Reader):
    """`Reader` of a folder: it reads the Parquet files in the folder and in its direct subfolders."""

    needs_data = False

    def __init__(self, options: FileReading) -> None:
        self._folder = options.path
        self._options = options
        self._pyarrow = _pyarrow()

    def read(self, last: Mapping[str, PipelineMessage]) -> Iterator[Sequence[PipelineMessage]]:
        done: dict[Path, str] = {}
        with system_errors("read", self._folder):
            while True:
                files = self._files(done, last)
                for path in files:
                    yield from self._file(path)
                    place = PipelineMessage(Op.NOOP, unix_ms(), self._place(path.parent), _identity(path))
                    yield [place]
                    done[path.parent] = path.name
                if not files:
                    if not self._options.follow:
                        return
                    yield []
                    time.sleep(_WAIT_SECONDS)

    def _files(self, done: Mapping[Path, str], last: Mapping[str, PipelineMessage]) -> list[Path]:
        found = []
        for folder in [self._folder, *sorted(each for each in self._folder.iterdir() if each.is_dir())]:
            before = last.get(self._place(folder))
            after = done.get(folder, str(before.data["file"]) if before is not None else "")
            files = sorted(folder.glob(f"*{_ENDING}"))
            if before is not None and folder not in done:
                self._require_same(folder / after, before.data)
            if after and files and after not in {each.name for each in files} and after > files[-1].name:
                raise PositionLost(
                    f"{folder} has lost files that were read",
                    evidence=f"{after} was read, the last there is {files[-1].name}",
                    next_step="bring them back, or have the writer go on in another folder",
                )
            found += [each for each in files if each.name > after]
        return found

    def _require_same(self, path: Path, before: Mapping[str, Any]) -> None:
        """Raise PositionLost if the content of the file that was read last has changed. A removed file is no error."""
        if "size" in before and path.exists() and (now := _identity(path)) != before:
            raise PositionLost(
                f"{path} is not the file that was read",
                evidence=f"its size and checksum were {before['size']} and {before['checksum']}, and are {now['size']} "
                f"and {now['checksum']}",
                next_step="bring the files back that were read, or have the writer go on in another folder",
            )

    def _file(self, path: Path) -> Iterator[Sequence[PipelineMessage]]:
        own = namespace_of(path.parent.name) if path.parent != self._folder else path.stem
        encoded = encoded_columns(self._pyarrow, path, _JSON)
        batch: list[PipelineMessage] = []
        room = Room(self._options.batch_rows)
        for row in rows_of(self._pyarrow, path, self._options.batch_rows):
            message = self._message(row, encoded, self._options.namespace or own)
            batch.append(message)
            if room.take(size_of(message.data)):
                yield batch
                batch = []
                room.empty()
        if batch:
            yield batch

    def _message(self, row: dict[str, Any], encoded: set[str], namespace: str) -> PipelineMessage:
        op, timestamp = row.pop("_op", "insert"), row.pop("_timestamp", None)
        row.pop("_offset", None)
        for name in encoded:
            if row[name] is not None:
                row[name] = loads(b'{"":%b}' % row[name].encode())[""]
        at = max(0, round(timestamp.timestamp() * 1000)) if isinstance(timestamp, datetime) else unix_ms()
        # A delete has only the columns of its key, which are never null. The file's other columns are null in its row.
        data = {name: value for name, value in row.items() if value is not None or op != "delete"}
        return PipelineMessage(_OPS.get(op, Op.INSERT), at, namespace, data)

    def _place(self, folder: Path) -> str:
        return f"file/{folder}"


def _identity(path: Path) -> dict[str, Any]:
    """Return name and size (in bytes) of a file, and the CRC-32 of its last 64 KiB, which contain Parquet's footer with
    the size of each column."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END_BYTES))
        return {"file": path.name, "size": size, "checksum": crc32(file.read(_END_BYTES))}


def _pyarrow() -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional, and half a second
        import pyarrow.compute  # noqa: PLC0415 - as above
        import pyarrow.parquet  # noqa: PLC0415 - as above
    except ImportError as error:
        raise AdaptorError(
            "Parquet needs the package pyarrow, which is not installed",
            evidence=str(error),
            next_step=install_hint("parquet"),
        ) from error
    return pa
