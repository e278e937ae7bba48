"""The message of a pipeline: an operation on a row, with its time, its namespace and its data."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple


class Op(IntEnum):
    """The operation that a message describes."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    COMMAND = 3
    NOOP = 4
    """No operation: the message stores a position of the reader. Writers do not get it."""


class Mode(IntEnum):
    """State of a namespace at the time of a message."""

    COPY = 0
    """The message belongs to a copy of the namespace's contents."""
    SYNC = 1
    """The message is a change that was read as it occurred."""
    COMPLETE = 2
    """The message is the last message of a copy."""


class PipelineMessage(NamedTuple):
    """A message of a pipeline. It is immutable: transforms return new messages."""

    op: Op
    timestamp: int
    """Time of the operation, in milliseconds since 1970 (UTC), as precisely as the reader knows it."""
    namespace: str
    """The table, topic or file that the message belongs to."""
    data: Mapping[str, Any]
    """Values by field. They have types of JSON, or are a datetime (with a zone), a Decimal or bytes."""
    mode: Mode = Mode.SYNC
    offset: int = -1
    """The message's offset in the commit log, -1 before it is appended."""
