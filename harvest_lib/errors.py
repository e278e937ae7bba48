"""All exceptions of the harvester.

    HarvestError
    ├── ConfigError            a setting is wrong: names the file, the line and the field
    ├── RecordError            a record that could never be sent, refused before it is written
    ├── OutboxTableError       the outbox table is missing, or is not an outbox table
    ├── DatabaseError
    │   ├── DatabaseUnavailable    Postgres does not answer
    │   ├── DatabaseAccessDenied   Postgres answers and refuses
    │   └── ServerRegressed        the server may lack records that were harvested before
    ├── CheckpointError        a checkpoint belongs to another outbox, is lost, or is ahead of the server
    ├── PoolConflict           another pool harvests the same outbox, or takes part in the same election
    ├── KafkaError
    │   ├── KafkaUnavailable       no broker answers
    │   ├── KafkaAccessDenied      a broker answers and refuses
    │   ├── TopicMissing           a topic that must exist does not
    │   ├── TopicTooSmall          a topic has fewer partitions than are needed
    │   └── TopicCompacted         a topic is compacted, but has to keep all records
    ├── ParkedRecordMissing    the requested parked record does not exist
    ├── AdaptorError           a pipeline's source or destination does not meet the requirements
    │   ├── MessageRefused         a destination refuses a message: names the message's offset in the log
    │   └── PositionLost           a reader cannot continue from its position: the source has removed later changes
    ├── LogError               a commit log or an offset log of a pipeline cannot be used in its present state
    │   ├── LogInUse               another process has it open
    │   ├── LogTooNew              a later version of this library wrote it
    │   ├── LogDamaged             the bytes on the disk have changed since they were written: names file and byte
    │   ├── LogUnwritable          the disk is full, has failed, or is read-only
    │   ├── EntryRefused           a message does not fit into the format of the log
    │   └── OffsetBeyondLog        an offset is after the end of the log
    ├── PipelineError          a pipeline stopped, or cannot continue
    ├── LifecycleError         a call is not allowed in the state of the harvester
    ├── NothingChecked         a check found nothing to check
    ├── OutputLost             a command could not write its output
    └── StackError             the local stack could not be started or stopped

Every message has three parts: the cause, the evidence for the cause, and the next step. Expected outcomes, such as a
failed delivery or the end of a term, are values, not exceptions.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

FOUND_EXIT_CODE = 13
"""Exit code of a command that succeeded with a negative answer: anomalies were found, or nothing runs.

A crash cannot cause this exit code: interpreters and shells use 1, 2, 120, 126, 127, and 128 plus the signal's number.
"""


class HarvestError(Exception):
    """Base class of every error that this library raises on purpose.

    `cause` is the fault, `evidence` the observation that shows the fault (it may be empty), and `next_step` the
    operator's remedy. No text of an error contains a secret.
    """

    exit_code: ClassVar[int] = 1
    """Exit code of a command that ends with this error."""

    wears_off: bool = False
    """True if the fault remains after its evidence has disappeared, so that a later retry would silently skip
    records."""

    def __init__(self, cause: str, *, evidence: str = "", next_step: str) -> None:
        self.cause = cause
        self.evidence = evidence
        self.next_step = next_step
        lines = [cause, *([f"evidence: {evidence}"] if evidence else []), f"next step: {next_step}"]
        super().__init__("\n  ".join(lines))


class ConfigError(HarvestError):
    """A setting is missing, unknown or malformed, or contradicts another setting: correct the named field."""

    exit_code = 3

    def __init__(
        self,
        cause: str,
        *,
        field: str = "",
        source: str = "",
        line: int | None = None,
        origin: str = "",
        next_step: str,
    ) -> None:
        self.field = field
        self.source = source
        self.line = line
        self.problems: Sequence[ConfigError] = (self,)
        """All problems that were found together, each as an error."""
        place = f"{source}, line {line}" if source and line else source
        evidence = ", ".join(part for part in (place, f"field `{field}`" if field else "") if part)
        evidence = f"{evidence} ({origin})" if evidence and origin else evidence or origin
        super().__init__(cause, evidence=evidence, next_step=next_step)

    def read_from(self, origin: str) -> "ConfigError":
        """Return the same error, whose evidence ends with the origin of the whole configuration."""
        named = [
            ConfigError(
                each.cause,
                field=each.field,
                source=each.source,
                line=each.line,
                origin=origin,
                next_step=each.next_step,
            )
            for each in (self, *self.problems)
        ]
        named[0].problems = named[1:]
        return named[0]


class RecordError(HarvestError):
    """Kafka or the outbox table would always reject a record: correct the record in the program that writes it."""


class OutboxTableError(HarvestError):
    """The outbox table is missing or lacks a column: create it with `harvest init`."""

    exit_code = 4


class DatabaseError(HarvestError):
    """Postgres refused a request or did not answer."""

    exit_code = 5


class DatabaseUnavailable(DatabaseError):
    """Postgres does not answer: check the host, the port and whether it runs."""


class DatabaseAccessDenied(DatabaseError):
    """Postgres refused the user, the password or a privilege: check the credentials and the grants."""


class ServerRegressed(DatabaseError):
    """The server may lack records that were harvested before, after a failover or a restore. Continuing could silently
    skip records."""

    def __init__(self, cause: str, *, evidence: str = "", next_step: str, wears_off: bool = True) -> None:
        self.wears_off = wears_off
        """False if the check may find no record missing after a setting is corrected or a right is granted."""
        super().__init__(cause, evidence=evidence, next_step=next_step)


class CheckpointError(HarvestError):
    """A checkpoint does not match its outbox, or is missing. Continuing could repeat or skip records."""

    exit_code = 8


class PoolConflict(HarvestError):
    """Another pool harvests the same outbox, or takes part in the same election: stop a pool, or separate the pools."""

    exit_code = 8

    def __init__(self, cause: str, *, evidence: str = "", next_step: str, theirs: Mapping[str, str]) -> None:
        self.theirs = theirs
        """The other pool's description of itself: JSON of `harvest_lib.leadership.pool.Pool`."""
        super().__init__(cause, evidence=evidence, next_step=next_step)


class KafkaError(HarvestError):
    """Kafka refused a request or did not answer."""

    exit_code = 6


class KafkaUnavailable(KafkaError):
    """No broker answers: check `bootstrap.servers` and whether the brokers run."""


class KafkaAccessDenied(KafkaError):
    """Kafka refused the credentials or an operation: check the SASL settings and the ACLs."""


class TopicMissing(KafkaError):
    """A required topic does not exist, and the harvester may not create it: create it with the given command."""


class TransactionOpen(KafkaError):
    """A Kafka transaction stays open and hides later records: wait, or abort the transaction with the given command."""


class TopicTooSmall(KafkaError):
    """A topic has fewer partitions than required: add partitions with the given command."""


class TopicCompacted(KafkaError):
    """A topic is compacted, but has to keep all records: change its `cleanup.policy`."""


class ParkedRecordMissing(HarvestError):
    """The requested parked record does not exist, or no longer exists: check with `harvest park list`."""


class AdaptorError(HarvestError):
    """A pipeline's source or destination does not meet the requirements: correct it, or correct the declaration."""


class MessageRefused(AdaptorError):
    """A destination, or the commit log, refuses a message: inspect the message with `harvest pipeline show`."""


class PositionLost(AdaptorError):
    """A reader cannot continue from its position: the source has removed later changes, which would be skipped."""

    exit_code = 8

    def __init__(self, cause: str, *, evidence: str = "", next_step: str, wears_off: bool = False) -> None:
        super().__init__(cause, evidence=evidence, next_step=next_step)
        self.wears_off = wears_off


class LogError(HarvestError):
    """A commit log or an offset log cannot be used in its present state."""

    exit_code = 9


class LogInUse(LogError):
    """Another process has the log open: stop it first, or read without writing."""


class LogTooNew(LogError):
    """A later version of this library wrote the log: use that version."""


class LogDamaged(LogError):
    """The bytes on the disk have changed since they were written: restore the file, or skip the messages."""

    def __init__(
        self, cause: str, *, path: Path, byte: int, offsets: range | None = None, evidence: str = "", next_step: str
    ) -> None:
        self.path = path
        self.byte = byte
        self.offsets = offsets
        """The offsets of messages that may be damaged; None for the whole log."""
        super().__init__(cause, evidence=f"{path}, byte {byte}{evidence and f': {evidence}'}", next_step=next_step)


class LogUnwritable(LogError):
    """The disk of a log is full, has failed, or is read-only: free space, or choose another folder."""


class EntryRefused(LogError):
    """A message does not fit into the log's format: correct the message at its source."""


class OffsetBeyondLog(LogError):
    """An offset is after the end of the log: the log was cut off or replaced, or the offset belongs to another log."""


class PipelineError(HarvestError):
    """A pipeline stopped, or cannot continue. Its logs are unchanged, so it can resume after the cause is removed."""

    exit_code = 9


class LifecycleError(HarvestError):
    """The harvester is not in a state that allows this call: see `Harvest.state`."""


class NothingChecked(HarvestError):
    """A check found nothing to check, which proves nothing: name the expected records, or allow an empty result."""

    exit_code = 10


class ArchiveError(HarvestError):
    """The archive of segments cannot be written or read, is damaged, or belongs to another outbox."""

    exit_code = 11


class OutputLost(HarvestError):
    """A command could not write its output: free space on its target, or redirect the output."""

    exit_code = 12


class StackError(HarvestError):
    """The local stack could not be started or stopped: see the log that the message names."""

    exit_code = 7


def install_hint(extra: str) -> str:
    """Return the command that adds an extra to this installation. The command uses the tool that made the installation
    (pip, uv, uv tool or pipx) and its origin (a clone, a folder or a wheel)."""
    # Imported here, because every command imports this module, and should start quickly.
    import json  # noqa: PLC0415
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415

    name = f"outbox-harvester[{extra}]"
    try:
        installed = distribution("outbox-harvester")
    except PackageNotFoundError:
        return f"pip install '{name}'"
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    place = str(origin.get("url", ""))
    path = unquote(urlsplit(place).path)
    if vcs := origin.get("vcs_info", {}):  # the URL of PEP 610 lacks the scheme and the commit, which pip needs
        place = f"{vcs['vcs']}+{place}@{vcs['commit_id']}"
    is_folder, is_editable = "dir_info" in origin, origin.get("dir_info", {}).get("editable", False)
    if is_editable and Path(sys.prefix, ".ready").is_file():
        return f"make setup (in {path})"  # the environment of a clone, which has all extras
    wanted = f"{path}[{extra}]" if is_folder else f"{name} @ {place}" if place else name
    if "pipx" in Path(sys.prefix).parts:
        return f"pipx install --force '{wanted}'"
    if Path(sys.prefix).parts[-3:-1] == ("uv", "tools"):
        return f"uv tool install --force '{wanted}'"
    tool = "uv pip" if (installed.read_text("INSTALLER") or "").strip() == "uv" else "pip"
    return f"{tool} install {'-e ' if is_editable else ''}'{wanted}'"
