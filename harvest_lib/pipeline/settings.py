"""Models of a pipeline's settings, except those of adaptors, with units, defaults and validation.

In a file, durations and sizes have a unit (`1s`, `256MB`), and the names of settings lack `_seconds` and `_bytes`.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from harvest_lib.config.durations import SPELLING, parse_duration
from harvest_lib.config.problems import custom_error
from harvest_lib.pipeline.namespace import EVERYTHING, compiled

_SIZE = re.compile(r"([0-9]+)\s*(B|[kKMG]B|[KMG]iB)")
_BYTES = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_LONGEST_SECONDS = 86_400.0


def _seconds(value: object) -> object:
    if isinstance(value, float):
        found = value  # the model was created in Python, not from a file
    elif not isinstance(value, str):
        raise custom_error("is not a duration", SPELLING)
    else:
        try:
            found = parse_duration(value)
        except ValueError as error:
            raise custom_error(str(error), SPELLING) from None
    if not 0.0 <= found <= _LONGEST_SECONDS:
        raise custom_error("is out of range: it must be between 0s and 24h", "choose a value in range")
    return found


def _bytes(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise custom_error("is not a size", "write a number with its unit, for example `256MB` or `1GiB`")
    return int(found[1]) * _BYTES[found[2].upper()]


def _namespace(value: object) -> object:
    if not isinstance(value, str):
        raise custom_error("must be text", "write a regular expression, in quotes")
    try:
        compiled(value)
    except ValueError as error:
        raise custom_error(
            str(error), "write an expression of https://golang.org/s/re2syntax, in single quotes"
        ) from None
    return value


def name_complaint(name: str) -> str:
    """Return why a text is not valid as the name of a pipeline or a writer; an empty text for a valid name."""
    return "" if _NAME.fullmatch(name) else "is not a name: letters, digits, `_`, `-`, 64 at most, a letter first"


Seconds = Annotated[float, BeforeValidator(_seconds)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1 << 12)]
Filter = Annotated[str, BeforeValidator(_namespace)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True)


class CommitLogSettings(_Settings):
    """Settings of the commit log."""

    segment_bytes: Bytes = Field(default=1 << 30, alias="segment_size")
    """Size of a segment, at most. A full segment is closed, and a new segment begins. Default 1 GiB."""
    sync_seconds: Seconds = Field(default=1.0, alias="sync")
    """Time until appended messages are synced to the disk, so that they survive a loss of power. Default 1 s."""
    compact_seconds: Seconds = Field(default=60.0, alias="compact_every")
    """Interval of the compaction of closed segments, up to the position of the slowest writer; 0 for never. Default
    1 min."""


class PipelineSettings(_Settings):
    """Settings of a pipeline."""

    name: str = ""
    """Name of the pipeline for operators. Default: the file's name without its extension."""
    folder: Path
    """Folder of the commit log and the offsets. A relative path starts at the folder of the file."""
    commit_log: CommitLogSettings = CommitLogSettings()
    flush_seconds: Seconds = Field(default=1.0, alias="flush_offsets")
    """Interval of flushing the writers' offsets. After a kill, a writer may get the messages of the last interval
    again. Default 1 s."""
    shutdown_seconds: Seconds = Field(default=30.0, alias="shutdown")
    """Time limit for a stop, in which writers write messages that are in the log. Default 30 s."""
    max_behind_messages: int | None = Field(default=None, ge=1)
    """The reader waits if it is more than this number of messages ahead of the slowest writer. This also limits how
    many messages a writer gets individually after a kill. Default: ten of the largest batches, at least 10,000."""


class WriterSettings(_Settings):
    """Settings that every writer has, independent of its adaptor."""

    namespace: Filter = EVERYTHING
    """Filter: a regular expression that must match somewhere in the namespace of a message. Default: all messages."""
    transforms: list[Any] = []
    """Transforms that are applied, in order, to each message before it is written. Default: none."""
    on_error: Literal["stop", "stop_writer"] = "stop"
    """What a failed bulk stops: the pipeline (`stop`), or only this writer (`stop_writer`). Default: stop."""
    on_transform_error: Literal["stop", "park"] = "stop"
    """What happens if a transform fails: the same as for a failed bulk (`stop`), or the message is parked in the folder
    (`park`). Default: stop."""
    batch_messages: int = Field(default=1_000, ge=1, le=100_000)
    """Messages of the log per write, at most. Default: 1,000."""


def by_their_names_in_files(model: type[BaseModel]) -> list[str]:
    """Return the names of a model's settings as they are in a file."""
    return [field.alias or name for name, field in model.model_fields.items()]
