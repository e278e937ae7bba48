"""Sources and destinations of pipelines. Packages add theirs by the entry point `harvest_lib.adaptors`.

An entry point leads to an `Adaptor`, and its name is the name that declarations use. A missing side is None.

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
"""Declared as entry points too; here so that they are found where the library runs from its source."""


class Reader(Protocol):
    """Used by a single thread, except where noted. A class that inherits it needs `read` alone."""

    def read(self, last: Mapping[str, PipelineMessage]) -> Iterator[Sequence[PipelineMessage]]:
        """Yield batches of messages, an empty batch where nothing is ready, until everything was read or for ever.

        `last` has the last message of each namespace that this reader sent before, as it stands in the commit log,
        NOOPs included: it continues from there. A request for a batch confirms that the previous batch is in the log.
        """
        ...

    def kept(self, last: Mapping[str, PipelineMessage]) -> None:  # noqa: ARG002 - for readers that override it
        """Note that all messages up to these have reached every writer, and may be forgotten at the source."""
        return

    def retained(self) -> "Sequence[Retained]":
        """Return the state of each partition of a source that removes old messages, read or not. From any thread,
        often; does not wait."""
        return ()

    def slot_state(self) -> "SlotState | None":
        """Return the state of a replication slot, whose server keeps all changes that were not read; None without a
        slot, or while it is not known. From any thread, often; does not wait."""
        return None

    def close(self) -> None:
        """Let go of connections. Idempotent."""
        return


class Writer(Protocol):
    """Used by one thread. A class that inherits it gets a `close` that does nothing."""

    def write(self, messages: Sequence[PipelineMessage]) -> None:
        """Write them in their order, and return once all of them are durable.

        Raises if any of them was refused: the rest may be written. Writing a message again has no other effect than
        writing it once, where the destination can recognize it.
        """
        ...

    def close(self) -> None:
        """Let go of connections. Idempotent."""
        return


class Options(BaseModel):
    """The options of built-in adaptors. Unknown names are refused; an error never repeats a value: it may be secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


Made_co = TypeVar("Made_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side(Generic[Made_co]):
    """One of the two sides of an adaptor: the options, a model that checks itself, and their reader or writer.

    Making connects to nothing yet, so that a declaration can be checked anywhere.
    """

    options: type[BaseModel]
    make: Callable[[Any], Made_co]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptor:
    """A kind of source, of destination, or of both. `summary` describes it in a line."""

    summary: str
    reads: Side[Reader] | None = None
    writes: Side[Writer] | None = None


def names() -> Sequence[str]:
    return sorted(_places())


def find(name: str) -> Adaptor:
    """Return an adaptor by its name. Raises ConfigError for an unknown name, AdaptorError if it cannot be loaded."""
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
    """Return the reading side of an adaptor. Raises ConfigError if it cannot read."""
    return _side(name, "read", lambda adaptor: adaptor.reads)


def writing(name: str) -> Side[Writer]:
    """Return the writing side of an adaptor. Raises ConfigError if it cannot write."""
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
    """Return the targets of each name, as entry points spell them."""
    places = {name: {place} for name, place in OURS.items()}
    for each in entry_points(group=GROUP):
        places.setdefault(each.name, set()).add(each.value)
    return {name: sorted(found) for name, found in places.items()}
