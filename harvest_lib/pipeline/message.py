"""Messages of a pipeline: the operation, its time, its namespace, and its data."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple


class Op(IntEnum):
    """Operation of a message."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    COMMAND = 3
    NOOP = 4
    """Nothing: a reader notes its position. No writer gets it."""


class Mode(IntEnum):
    """State of a namespace."""

    COPY = 0
    """Its present contents are being copied."""
    SYNC = 1
    """Changes follow as they occur."""
    COMPLETE = 2
    """This message is the last of the copy."""


class PipelineMessage(NamedTuple):
    """A message. Immutable; transforms return new messages."""

    op: Op
    timestamp: int
    """Time of the operation in milliseconds since 1970, UTC, as far as the reader knows."""
    namespace: str
    """The table, topic or file it is of."""
    data: Mapping[str, Any]
    """Values that JSON can hold, and datetime (with a zone), Decimal and bytes."""
    mode: Mode = Mode.SYNC
    offset: int = -1
    """Its offset in the commit log, -1 before it was appended."""
