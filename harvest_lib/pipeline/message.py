"""What flows through a pipeline: what was done, when, to which namespace, and the data it was done with."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple


class Op(IntEnum):
    """What was done."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    COMMAND = 3
    NOOP = 4
    """Nothing: a reader notes its position. No writer gets it."""


class Mode(IntEnum):
    """How far a namespace is."""

    COPY = 0
    """What was there is being copied."""
    SYNC = 1
    """Changes follow as they occur."""
    COMPLETE = 2
    """This message is the last of the copy."""


class Message(NamedTuple):
    """One of them. Immutable; transforms return others."""

    op: Op
    timestamp: int
    """Milliseconds since 1970, UTC: when it was done, as far as the reader knows."""
    namespace: str
    """The table, topic or file it is of."""
    data: Mapping[str, Any]
    """What JSON can hold, and datetime (with a zone), Decimal and bytes."""
    mode: Mode = Mode.SYNC
    offset: int = -1
    """Its offset in the commit log, -1 before it has one."""
