"""Protocol of a store: it saves the state of a shard together with the shard's checkpoint, in transactions.

    restore ─► begin ─► (the user changes state) ─► commit ─► begin …
    places the fence                                False: another owner has placed a higher fence, nothing was saved

Promise of every store: after a new owner has restored a checkpoint, no older owner commits anything, however late the
older owner's commit arrives.
"""

from typing import Any, Protocol

from harvest_lib.consume.checkpoint import Checkpoint
from harvest_lib.record.header import headers_of
from harvest_lib.sequencing.batch import Message


class StateRefused(Exception):
    """The store refuses a user's change. The text is the store's error. The transaction was not committed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(reason_of(error))


class Store(Protocol):
    """The store of a shard. A single thread uses it."""

    def restore(self) -> Checkpoint:
        """Fence the previous owner of the shard, and return the checkpoint."""
        ...

    def begin(self) -> Any:
        """Begin a transaction, and return the object through which the user changes the state."""
        ...

    @property
    def is_open(self) -> bool:
        """Return True if the transaction is open: it has not ended, and none of its statements has failed."""
        ...

    def touch(self) -> None:
        """Show that the owner is alive. Without this, a store may end an idle transaction, because the owner may be
        frozen."""
        ...

    def will_pass(self, error: BaseException) -> bool:
        """Return True if no message is to blame for an exception from a user's function, because the exception passes
        by itself. The exception may have any type."""
        ...

    def flush(self) -> None:
        """Write changes that the store has only buffered. Raises StateRefused."""
        ...

    def commit(self, checkpoint: Checkpoint) -> bool:
        """Commit the changes together with the checkpoint. Return False, and commit nothing, if the owner was fenced.
        Raises StateRefused.
        """
        ...

    def park(self, message: Message, reason: str) -> None:
        """Park a message that the user's function refuses, in the open transaction. Replace a parked message with the
        same offset, because that message is from before the topic was recreated."""
        ...

    def rollback(self) -> None:
        """Roll the transaction back. Raises an error if the store itself has failed."""
        ...

    def close(self) -> None:
        """Close the connections, without committing changes."""
        ...


def headers_as_json(record: Any) -> list[list[str | None]]:
    """Return the headers of a parked message for JSON: pairs of a name and a value in hexadecimal. Return an empty list
    if the client cannot read the headers."""
    headers = headers_of(record) or ()
    return [[storable(name), value if value is None else bytes(value).hex()] for name, value in headers]


def reason_of(error: BaseException) -> str:
    """Return the type and the text of an exception of a user's function, in a form that every store can save."""
    try:
        text = str(error)
    except BaseException as failed:  # noqa: BLE001 - the user's, of any kind
        text = f"its text is unavailable ({type(failed).__name__})"
    return storable(f"{type(error).__name__}: {text}")[:_LONGEST_REASON]


def storable(text: str) -> str:
    """Return text with NUL characters and lone surrogates escaped, because no database and no terminal accepts them."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


_LONGEST_REASON = 10_000
