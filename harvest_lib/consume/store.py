"""Keeps the state of a shard and its checkpoint, in one transaction.

    restore ─► begin ─► (the user changes state) ─► commit ─► begin …
    places the fence                                False: somebody has placed a higher one, nothing was kept

Promises of every store: once a new owner has restored a checkpoint, no older owner commits anything, whenever its
commit arrives.
"""

from typing import Any, Protocol

from harvest_lib.consume.checkpoint import Checkpoint
from harvest_lib.sequencing.batch import Message


class Store(Protocol):
    """Of one shard, used by one thread."""

    def restore(self) -> Checkpoint:
        """Fence off whoever owned the shard before, and return the checkpoint."""
        ...

    def begin(self) -> Any:
        """Begin a transaction, and return what the user changes state with."""
        ...

    @property
    def is_open(self) -> bool:
        """Tell whether the transaction is open: that nobody has ended it, and no statement of it has failed."""
        ...

    def touch(self) -> None:
        """Show that we live: a store may end a transaction of which it hears nothing, as its owner may be frozen."""
        ...

    def will_pass(self, error: Exception) -> bool:
        """Tell whether what a function of the user raised is the store's, and passes by itself."""
        ...

    def commit(self, checkpoint: Checkpoint) -> bool:
        """Keep what was changed, and the checkpoint with it; False if we were fenced off, and nothing was kept."""
        ...

    def park(self, message: Message, reason: str) -> None:
        """Park a message that the user's function does not take, in the present transaction."""
        ...

    def rollback(self) -> None:
        """Forget what was changed; raises if the store itself is what failed."""
        ...

    def close(self) -> None:
        """Let go of connections; what was not committed is forgotten."""
        ...


def headers_as_json(record: Any) -> list[list[str | None]]:
    """Return the headers of a message that is parked, as JSON takes them: their bytes in hexadecimal."""
    return [[name, value if value is None else bytes(value).hex()] for name, value in record.headers() or ()]
