"""What pipelines read from and write to. Others add theirs by the entry point `harvest_lib.adaptors`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from harvest_lib.pipeline.message import Message


class Reader(Protocol):
    """Used by one thread."""

    def read(self, last: Mapping[str, Message]) -> Iterator[Sequence[Message]]:
        """Return messages in batches, an empty one where nothing is ready, for ever or until all was read.

        `last` has the last message of each namespace that this reader had sent down before, as it stands in the commit
        log, NOOPs included: it goes on from there. A batch that is asked for says that the one before is in the commit
        log.
        """
        ...

    def kept(self, last: Mapping[str, Message]) -> None:
        """Hear that all up to these has reached every writer, and may be forgotten at the source."""
        ...

    def close(self) -> None:
        """Let go of connections. Idempotent."""
        ...


class Writer(Protocol):
    """Used by one thread."""

    def write(self, messages: Sequence[Message]) -> None:
        """Write them in their order, and return once all of them are durable.

        Raises where any of them was not taken: which of them were, is unknown then. Writing one again has no other
        effect than writing it once, where the destination can tell.
        """
        ...

    def close(self) -> None:
        """Let go of connections. Idempotent."""
        ...
