"""Keeps the state of a shard together with its checkpoint, transaction by transaction.

    restore ─► begin ─► (the user changes state) ─► commit ─► begin …
    places the fence                                False: another owner has placed a higher fence, nothing was kept

Promises of every store: once a new owner has restored a checkpoint, no older owner commits anything, whenever its
commit arrives.
"""

from typing import Any, Protocol

from harvest_lib.consume.checkpoint import Checkpoint
from harvest_lib.record.header import headers_of
from harvest_lib.sequencing.batch import Message


class StateRefused(Exception):
    """The store refuses a user's change, with the text of its error; nothing of the transaction was kept."""

    def __init__(self, error: Exception) -> None:
        super().__init__(reason_of(error))


class Store(Protocol):
    """The store of a shard, used by a single thread."""

    def restore(self) -> Checkpoint:
        """Fence off the previous owner of the shard, and return the checkpoint."""
        ...

    def begin(self) -> Any:
        """Begin a transaction, and return the object that the user changes state with."""
        ...

    @property
    def is_open(self) -> bool:
        """Return True if the transaction is open: it has not ended, and no statement of it has failed."""
        ...

    def touch(self) -> None:
        """Keep the transaction alive: a store may end it without signs of life, as its owner may be frozen."""
        ...

    def will_pass(self, error: BaseException) -> bool:
        """Return True if an exception, of any kind, of a user's function passes by itself, and is no message's."""
        ...

    def flush(self) -> None:
        """Write the changes that were not written at once. Raises StateRefused."""
        ...

    def commit(self, checkpoint: Checkpoint) -> bool:
        """Keep the changes, and the checkpoint with them; False if the owner was fenced off, and nothing was kept.

        Raises StateRefused.
        """
        ...

    def park(self, message: Message, reason: str) -> None:
        """Park a message that the user's function does not take, in the present transaction. It replaces a parked
        message of the same offset, from before the topic was recreated."""
        ...

    def rollback(self) -> None:
        """Forget the changes; raises if the store itself has failed."""
        ...

    def close(self) -> None:
        """Close connections; uncommitted changes are forgotten."""
        ...


def headers_as_json(record: Any) -> list[list[str | None]]:
    """Return the headers of a parked message for JSON: their bytes in hexadecimal; no headers if the client cannot read
    them."""
    headers = headers_of(record) or ()
    return [[storable(name), value if value is None else bytes(value).hex()] for name, value in headers]


def reason_of(error: BaseException) -> str:
    """Return the type and the text of an exception of a user's function, as every store takes it."""
    try:
        text = str(error)
    except BaseException as failed:  # noqa: BLE001 - the user's, of any kind
        text = f"its text is unavailable ({type(failed).__name__})"
    return storable(f"{type(error).__name__}: {text}")[:_LONGEST_REASON]


def storable(text: str) -> str:
    """Return text with NUL and half surrogate pairs escaped: no database and no terminal takes them."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


_LONGEST_REASON = 10_000
