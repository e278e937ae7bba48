"""The state that an audit saves, so that the next audit reads only later records: Parquet files and a manifest.

    manifest.json      the subject of the state, where the audit ended, its numbers, and the SHA-256 of each file
    <n>/copies         of every audit n: each copy that it read in Kafka
    <n>/ends           of the last audit: the end of each key's sequence
    <n>/open           of the last audit: committed records without a settled copy in Kafka
    <n>/pending        of the last audit: pending messages of a topic of `delivery: sequenced`
    <n>/found          of the last audit: duplicates, reordered and unknown records so far

Promises
- The manifest is replaced as a whole, after the results were committed: an audit that dies leaves the state unchanged.
- A state of another outbox, subscription, topic or version is refused, and so is an altered state.
- One audit at a time holds the folder.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harvest_lib.errors import HarvestError
from harvest_lib.spark.seen_rows import SeenRows

VERSION = 3

_MANIFEST, _LOCK = "manifest.json", "lock"
_COPIES = "copies"
_LATEST = ("ends", "open", "pending", "found")
_START_ANEW = "run the audit with --full, which reads everything and begins a new state; or name another folder"


class AuditStateError(HarvestError):
    """The state of earlier audits is of another outbox or other topics, or is damaged: audit with --full."""

    exit_code = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """The subject of a state. `outbox` is the identity of the outbox table, `reads` names subscription and filters, and
    `topics` maps each topic to its id in Kafka; an empty text stands for an unknown id."""

    outbox: str
    reads: str
    topics: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where an audit ended. `ends` are the offsets below which all records were read, by topic and partition. `seen`
    are the last rows that the snapshot of Postgres saw. `server` is the server's position in its log."""

    ends: Mapping[str, Mapping[str, int]]
    snapshot: str
    seen: SeenRows
    server: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The state of earlier audits: `numbers` are sums over these audits, `generations` the numbered folders with their
    files."""

    mark: Mark
    numbers: Mapping[str, int]
    generations: Sequence[int]
    folder: Path = field(repr=False)

    @property
    def copies(self) -> list[str]:
        """The paths of the copies of all audits."""
        return [str(self.folder / str(each) / _COPIES) for each in self.generations]

    def latest(self, name: str) -> str | None:
        """Return the path of the last audit's folder `name`, None if the audit has no such folder."""
        found = self.folder / str(self.generations[-1]) / name
        return str(found) if found.is_dir() else None


class AuditState:
    """The state in a locked folder. `past` is None for the first audit, and for a full audit."""

    def __init__(self, folder: Path, whose: Whose, *, full: bool) -> None:
        self._folder, self._whose = folder, whose
        self._known: Mapping[str, str] = {}
        self.past = None if full else self._load()
        held = self.past.generations if self.past else ()
        self._generation = 1 + max((int(each.name) for each in folder.iterdir() if each.name.isdigit()), default=0)
        self._kept = held
        for each in folder.iterdir():
            if each.name.isdigit() and int(each.name) not in held and not full:
                shutil.rmtree(each)  # of an audit that died

    @property
    def new(self) -> Path:
        """The folder for the state of this audit."""
        return self._folder / str(self._generation)

    def save(self, mark: Mark, numbers: Mapping[str, int]) -> None:
        """Write the manifest, which makes the files of this audit part of the state. Delete the files that no later
        audit reads."""
        generations = [*self._kept, self._generation]
        body = {
            "whose": asdict(self._whose),
            "mark": asdict(mark),
            "numbers": dict(numbers),
            "generations": generations,
            "files": {
                name: self._known.get(name) or _digest(self._folder / name)
                for name in _files(self._folder, generations)
            },
        }
        text = json.dumps({"version": VERSION, "sha256": _hash(body), "state": body}, indent=1)
        new = self._folder / f"{_MANIFEST}.new"
        with new.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._folder / _MANIFEST)
        for each in self._folder.iterdir():
            if each.name.isdigit() and int(each.name) not in generations:
                shutil.rmtree(each, ignore_errors=True)
        for number in generations[:-1]:
            for name in _LATEST:
                shutil.rmtree(self._folder / str(number) / name, ignore_errors=True)

    def _load(self) -> Past | None:
        path = self._folder / _MANIFEST
        try:
            document = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise damaged(f"{path} cannot be read: {error}") from error
        version = document.get("version") if isinstance(document, dict) else None
        if version != VERSION:
            raise AuditStateError(
                "the state of earlier audits is of another version",
                evidence=f"{path} is of version {version}, this audit reads {VERSION}",
                next_step=_START_ANEW,
            )
        body = document.get("state")
        if document.get("sha256") != _hash(body):
            raise damaged(f"{path} was altered: its checksum differs")
        self._require(body["whose"])
        self._known = body["files"]
        _check_files(self._folder, self._known, body["generations"])
        return Past(
            mark=Mark(**body["mark"]), numbers=body["numbers"], generations=body["generations"], folder=self._folder
        )

    def _require(self, saved: Mapping[str, Any]) -> None:
        now = asdict(self._whose)
        topics = saved["topics"]
        recreated = [
            name for name, found in now["topics"].items() if found and topics.get(name) and topics[name] != found
        ]
        if recreated:
            raise AuditStateError(
                f"the topic {recreated[0]!r} was recreated since the last audit: offsets mean other records",
                evidence=f"its id was {topics[recreated[0]]}, and is {now['topics'][recreated[0]]}",
                next_step=_START_ANEW,
            )
        for what, was, is_ in (
            ("outbox", saved["outbox"], now["outbox"]),
            ("subscription, or with other filters", saved["reads"], now["reads"]),
            ("set of topics", ", ".join(sorted(topics)), ", ".join(sorted(now["topics"]))),
        ):
            if was != is_:
                raise AuditStateError(
                    f"the state of earlier audits is of another {what}",
                    evidence=f"in {self._folder} it is {was}; this audit reads {is_}",
                    next_step=_START_ANEW,
                )


@contextmanager
def held(folder: Path, whose: Whose, *, full: bool) -> Iterator[AuditState]:
    """Lock the folder until the block ends, and create the folder if it is missing. With `full` the folder's content is
    ignored.

    Raises AuditStateError for a state of another subject or with damage, or if another audit holds the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AuditStateError(
                "another audit is at work on this state",
                evidence=f"it holds {folder / _LOCK}",
                next_step="wait for its end, or name another folder by --state",
            ) from error
        yield AuditState(folder, whose, full=full)


def damaged(evidence: str) -> AuditStateError:
    """Return the error for a state that was altered, or that lacks files."""
    return AuditStateError("the state of earlier audits is damaged", evidence=evidence, next_step=_START_ANEW)


def moved(what: str, evidence: str) -> AuditStateError:
    """Return the error for servers that no longer have the records that the state counts as read."""
    return AuditStateError(what, evidence=evidence, next_step=_START_ANEW)


def _files(folder: Path, generations: Sequence[int]) -> list[str]:
    found: list[str] = []
    for number in generations:
        for name in (_COPIES, *_LATEST) if number == generations[-1] else (_COPIES,):
            paths = sorted((folder / str(number) / name).glob("*.parquet"))
            found += [str(path.relative_to(folder)) for path in paths]
    return found


def _check_files(folder: Path, wanted: Mapping[str, str], generations: Sequence[int]) -> None:
    there = _files(folder, generations)
    if strange := sorted({*wanted} ^ {*there}):
        raise damaged(f"{folder / strange[0]} {'is missing' if strange[0] in wanted else 'was added'}")
    for name, digest in wanted.items():
        if _digest(folder / name) != digest:
            raise damaged(f"{folder / name} was altered: its checksum differs")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
