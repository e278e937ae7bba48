"""Sources and destinations of pipelines. A package adds its own through the entry point group `harvest_lib.adaptors`.

An entry point refers to an `Adaptor`. Pipeline declarations use the name of the entry point. `reads` is None for an
adaptor that cannot read, `writes` is None for an adaptor that cannot write.

    [project.entry-points."harvest_lib.adaptors"]
    redis = "acme_pipelines.redis:ADAPTOR"
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from harvest_lib.errors import AdaptorError, ConfigError
from harvest_lib.pipeline.message import PipelineMessage

if TYPE_CHECKING:
    from harvest_lib.consume.retention import Retained
    from harvest_lib.pipeline.adaptors.postgres.slot_watch import SlotState

GROUP = "harvest_lib.adaptors"

OURS: Mapping[str, str] = {
    name: f"harvest_lib.pipeline.adaptors.{name}:ADAPTOR" for name in ("file", "kafka", "outbox", "postgres", "stdout")
}
"""The built-in adaptors. They are declared as entry points too. This list serves a library that runs from its source
tree, where entry points are not installed."""


class Reader(Protocol):
    """Reads messages from a source. One thread calls it, except where noted. A subclass has to define only `read`."""

    needs_data: bool = True
    """False if the reader uses the data of NOOPs alone. Other messages in `last` then come with empty data, so that
    memory does not depend on the size of the last message of each namespace."""

    def read(self, last: Mapping[str, PipelineMessage]) -> Iterator[Sequence[PipelineMessage]]:
        """Yield batches of messages, and an empty batch if no message is ready. The iterator ends at the end of the
        source. If the source can grow, the iterator never ends.

        `last` maps each namespace to its last message (possibly a NOOP) in the commit log. The reader continues after
        these messages. A request for the next batch confirms that the previous batch is in the log.
        """
        ...

    def kept(self, last: Mapping[str, PipelineMessage]) -> None:  # noqa: ARG002 - for readers that override it
        """Note that every writer has written the messages in `last` (by namespace), and all messages before them. The
        source may drop all of these messages."""
        return

    def retained(self) -> "Sequence[Retained]":
        """Return the retention state of each partition, if the source removes old messages even before they are read.
        For any other source, the result is empty.

        Any thread may call this method, and call it often. The method does not block.
        """
        return ()

    def slot_state(self) -> "SlotState | None":
        """Return the state of the reader's replication slot: the server retains all changes that were not read from the
        slot. Return None if the reader has no slot, or if the state is not known yet.

        Any thread may call this method, and call it often. The method does not block.
        """
        return None

    def close(self) -> None:
        """Close all connections. Idempotent."""
        return


class Writer(Protocol):
    """Writes messages to a destination. A single thread calls it. A subclass inherits a `close` that does nothing."""

    def write(self, messages: Sequence[PipelineMessage]) -> None:
        """Write the messages in order, and return when all of them are durable.

        Raises if the destination refused a message; the other messages may be written nevertheless. If the destination
        can recognize a repeated message, writing it twice has the same effect as writing it once.
        """
        ...

    def close(self) -> None:
        """Close all connections. Idempotent."""
        return


class Options(BaseModel):
    """Base class for the options of built-in adaptors. Unknown options are refused. An error never shows the value of
    an option, because the value may be secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


Made_co = TypeVar("Made_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side(Generic[Made_co]):
    """The reading or the writing side of an adaptor. `options` is the model that validates its options.

    `make` returns a reader or writer for valid options. `make` opens no connection, so that a declaration can be
    checked on a machine that does not reach the source or destination.
    """

    options: type[BaseModel]
    make: Callable[[Any], Made_co]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptor:
    """A kind of source, of destination, or of both. `summary` is a description in one line."""

    summary: str
    reads: Side[Reader] | None = None
    writes: Side[Writer] | None = None


def names() -> Sequence[str]:
    return sorted(_places())


def find(name: str) -> Adaptor:
    """Return an adaptor by its name. Raises ConfigError for an unknown name, AdaptorError if the adaptor cannot be
    loaded."""
    places = _places()
    found = places.get(name, [])
    if not found:
        raise ConfigError(
            f"there is no adaptor {name!r}",
            field="adaptor",
            next_step=f"choose one of {', '.join(sorted(places))}, or install the package that brings it",
        )
    if len(found) > 1:
        raise AdaptorError(
            f"the adaptor {name!r} is there more than once",
            evidence=", ".join(sorted(found)),
            next_step=f"remove all packages but one that declare it in the entry point `{GROUP}`",
        )
    module, _, attribute = found[0].partition(":")
    try:
        adaptor = getattr(import_module(module), attribute)
    except Exception as error:
        raise AdaptorError(
            f"the adaptor {name!r} cannot be loaded",
            evidence=f"{found[0]}: {type(error).__name__}: {error}",
            next_step="correct or remove the package that declares it",
        ) from error
    if not isinstance(adaptor, Adaptor):
        raise AdaptorError(
            f"what is declared as the adaptor {name!r} is none",
            evidence=f"{found[0]} is a {type(adaptor).__name__}",
            next_step="have the entry point lead to a harvest_lib.pipeline.adaptors.Adaptor",
        )
    return adaptor


def reading(name: str) -> Side[Reader]:
    """Return the reading side of an adaptor. Raises ConfigError for an adaptor that cannot read."""
    return _side(name, "read", lambda adaptor: adaptor.reads)


def writing(name: str) -> Side[Writer]:
    """Return the writing side of an adaptor. Raises ConfigError for an adaptor that cannot write."""
    return _side(name, "write", lambda adaptor: adaptor.writes)


def _side(name: str, verb: str, side_of: Callable[[Adaptor], Side[Made_co] | None]) -> Side[Made_co]:
    side = side_of(find(name))
    if side is None:
        others = [each for each in OURS if side_of(find(each)) is not None]
        raise ConfigError(
            f"the adaptor {name!r} does not {verb}",
            field="adaptor",
            next_step=f"choose one that does, as {', '.join(others)} do",
        )
    return side


def _places() -> Mapping[str, Sequence[str]]:
    """Return a mapping from the name of each adaptor to the targets (`module:attribute`) declared for the name,
    sorted."""
    places = {name: {place} for name, place in OURS.items()}
    for each in entry_points(group=GROUP):
        places.setdefault(each.name, set()).add(each.value)
    return {name: sorted(found) for name, found in places.items()}
