"""The files of an archive. This module reads and writes the small files, `outbox.json` and the manifests.

    outbox.json                                     the outbox of the archive
    segments/<segment>.json                         the manifest: files, counts, hashes; written last
    records/day=2026-11-23/topic=orders/<segment>.parquet

A file of records counts only if a manifest names it. Days are days of `create_time`, in UTC.

Promise for an archive in a local folder: a file's content is synced to disk first, then the file's name, and only then
a manifest lists the file. A new file replaces an existing file atomically. On other file systems, a file is as durable
as that file system makes a closed file.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import psycopg

from harvest_lib.archive.urls import secrets, shown, without_secrets
from harvest_lib.errors import ArchiveError, HarvestError, install_hint
from harvest_lib.process.durable_files import make_folder, replacing

VERSION = 1
_CHUNK_BYTES = 1 << 20
_ABOUT = "outbox.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedFile:
    """Description of a file with the records of a topic and a day, ordered by id. `sha256` is the hash of its bytes."""

    path: str
    topic: str
    day: str
    records: int
    first_id: int
    last_id: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Description of a segment's files in the archive. The segment has the ids from `lower` (inclusive) to `upper`
    (exclusive). `lower` is None if the segment has no lower bound."""

    segment: str
    lower: int | None
    upper: int
    records: int
    last_transaction: int | None
    columns: Mapping[str, str]
    files: Sequence[ArchivedFile]


class ArchiveFiles:
    """The files of an archive, at a URL of fsspec or a path: a local folder, `s3://…`, `hdfs://…`.

    All methods raise ArchiveError if the file system fails. No error contains a secret of the URL.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self.url = shown(self._url)
        """The URL without its secrets, for errors, logs and `<outbox>_archived`."""
        try:
            import fsspec.implementations.local  # noqa: PLC0415 - optional

            self._system, self._root = fsspec.core.url_to_fs(self._url)
            self._is_folder = isinstance(self._system, fsspec.implementations.local.LocalFileSystem)
        except Exception as error:  # noqa: BLE001 - each file system has errors of its own
            raise ArchiveError(
                f"the archive {self.url} cannot be opened",
                evidence=self._said(error),
                next_step=f"correct the URL, or install its packages: {install_hint('archive')}, and fsspec's package "
                "for this file system",
            ) from self._cause(error)

    def _said(self, text: object) -> str:
        return without_secrets(str(text), self._url)

    def _cause(self, error: Exception) -> Exception | None:
        """Return the error, for `raise … from`. Return None if the error's text might quote a secret of the URL."""
        return None if secrets(self._url) else error

    def claim(self, identity: str, outbox: str) -> None:
        """Assign the archive to an outbox. Raises ArchiveError if the archive belongs to another outbox."""
        if self._read_json(_ABOUT) is None:
            self._write_json(_ABOUT, {"version": VERSION, "outbox": outbox, "identity": identity})
        self.require(identity, outbox)

    def require(self, identity: str, outbox: str) -> None:
        """Raise ArchiveError unless the archive belongs to this outbox."""
        about = self._read_json(_ABOUT)
        if about is None:
            raise ArchiveError(
                f"there is no archive at {self.url}",
                evidence=f"it has no {_ABOUT}",
                next_step="correct the URL, or run `harvest segments archive`",
            )
        self._refuse_newer(about, _ABOUT)
        if about.get("identity") != identity:
            raise ArchiveError(
                f"the archive {self.url} belongs to another outbox",
                evidence=f"it is of {about.get('outbox')} ({about.get('identity')}), this is {outbox} ({identity})",
                next_step="give each outbox a URL of its own",
            )

    def manifests(self) -> Sequence[Manifest]:
        """Return the manifests of all segments, ordered by id."""
        with self._translated("listed"):
            names = self._system.glob(f"{self._root}/segments/*.json")
        found = [self.manifest(name.rsplit("/", 1)[-1].removesuffix(".json")) for name in names]
        return sorted(filter(None, found), key=lambda each: each.upper)

    def manifest(self, segment: str) -> Manifest | None:
        """Return the manifest of a segment; None if there is none."""
        name = _manifest_name(segment)
        content = self._read_json(name)
        if content is None:
            return None
        self._refuse_newer(content, name)
        try:
            files = [ArchivedFile(**each) for each in content.pop("files")]
            return Manifest(**{**{k: v for k, v in content.items() if k != "version"}, "files": files})
        except (KeyError, TypeError) as error:
            raise self._damaged(name, f"it is no manifest: {error}") from error

    def publish(self, manifest: Manifest) -> None:
        """Write a manifest, read it back, and remove files of the segment that the manifest does not name.

        The files that the manifest names must be written before this call.
        """
        name = _manifest_name(manifest.segment)
        self._write_json(name, {"version": VERSION, **asdict(manifest)})
        if self.manifest(manifest.segment) != manifest:
            raise self._damaged(name, "the bytes read back differ from the bytes written")
        named = {f"{self._root}/{each.path}" for each in manifest.files}
        with self._translated("cleared"):
            name = f"{_glob_quoted(_quoted(manifest.segment))}.parquet"
            there = self._system.glob(f"{self._root}/records/*/*/{name}")
            unfinished = self._system.glob(f"{self._root}/records/*/*/.{name}.new")
            for stray in {*there, *unfinished} - named:
                self._system.rm_file(stray)

    def path(self, segment: str, *, day: str, topic: str) -> str:
        """Return the path, relative to the archive's root, of the file for a segment, day and topic."""
        return f"records/day={_quoted(day)}/topic={_quoted(topic)}/{_quoted(segment)}.parquet"

    @contextmanager
    def written(self, path: str) -> Iterator["HashingFile"]:
        """Open a new file for writing. It replaces an existing file when the block ends without an error."""
        with self._translated("written"), self._replacing(path) as file:
            yield HashingFile(file)

    @contextmanager
    def opened(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file for reading."""
        with self._translated("read"), self._system.open(f"{self._root}/{path}", "rb") as file:
            yield file

    def check_bytes(self, file: ArchivedFile) -> None:
        """Raise ArchiveError unless the file's bytes have the hash in the manifest."""
        found = hashlib.sha256()
        with self.opened(file.path) as opened:
            while chunk := opened.read(_CHUNK_BYTES):
                found.update(chunk)
        if found.hexdigest() != file.sha256:
            raise self._damaged(file.path, f"its SHA-256 is {found.hexdigest()}, the manifest has {file.sha256}")

    def _damaged(self, path: str, evidence: str) -> ArchiveError:
        return ArchiveError(
            f"{path} in the archive {self.url} is damaged",
            evidence=evidence,
            next_step="restore it from a copy of the archive; while its segment is in the outbox: "
            "`harvest segments archive --again`",
        )

    def _refuse_newer(self, content: Mapping[str, Any], name: str) -> None:
        if content.get("version", 0) > VERSION:
            raise ArchiveError(
                f"the archive {self.url} is of a newer version",
                evidence=f"{name} has version {content['version']}, this program knows {VERSION}",
                next_step="upgrade outbox-harvester here",
            )

    def _read_json(self, path: str) -> dict[str, Any] | None:
        with self._translated("read"):
            try:
                text = self._system.cat_file(f"{self._root}/{path}")
            except FileNotFoundError:
                return None
        try:
            content = json.loads(text)
        except ValueError as error:
            raise self._damaged(path, f"it is no JSON: {error}") from error
        if not isinstance(content, dict):
            raise self._damaged(path, "it is no JSON object")
        return content

    def _write_json(self, path: str, content: Mapping[str, Any]) -> None:
        with self._translated("written"), self._replacing(path) as file:
            file.write(json.dumps(content, indent=1).encode())

    @contextmanager
    def _replacing(self, path: str) -> Iterator[IO[bytes]]:
        whole = f"{self._root}/{path}"
        if self._is_folder:
            for folder in reversed(Path(path).parents):
                make_folder(Path(self._root) / folder)
            with replacing(Path(whole)) as file:
                yield file
        else:
            self._system.makedirs(whole.rsplit("/", 1)[0], exist_ok=True)
            with self._system.open(whole, "wb") as file:
                yield file

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except (HarvestError, psycopg.Error):  # errors of Postgres, which has the rows, quote no secret of the URL
            raise
        except FileNotFoundError as error:
            raise self._damaged(self._said(error.filename or error), "it is missing") from self._cause(error)
        except Exception as error:
            if not isinstance(error, OSError) and self._said(error) == str(error):
                raise  # an error of Parquet
            raise ArchiveError(
                f"the archive {self.url} could not be {what}",
                evidence=f"{type(error).__name__}: {self._said(error)}",
                next_step="check space and rights there, then run this again: only archived segments are dropped",
            ) from self._cause(error)


class HashingFile:
    """A file object for sequential writing that hashes the written bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.closed = False

    def write(self, content: Any) -> int:
        """Write all of the content, and return its number of bytes."""
        self._file.write(content)
        self._hash.update(content)
        self.bytes += memoryview(content).nbytes
        return memoryview(content).nbytes

    def flush(self) -> None:
        """Do nothing: the file is flushed when it is closed."""

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.bytes

    def readable(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Do nothing, because the caller that opened the file closes it."""

    @property
    def sha256(self) -> str:
        """SHA-256 of all written bytes, in hexadecimal."""
        return self._hash.hexdigest()


def _quoted(name: str) -> str:
    return quote(name, safe="-_.") or "%"


def _glob_quoted(name: str) -> str:
    return "".join(f"[{each}]" if each in "*?[" else each for each in name)


def _manifest_name(segment: str) -> str:
    return f"segments/{_quoted(segment)}.json"
