"""Routing of the commit log's messages to a writer: by its filter, then its transforms.

Promises
- A message that a writer does not get (another namespace, a NOOP, dropped, parked) counts as acknowledged.
- A message that a transform fails at is parked durably before it counts so, or nothing from it on does.
"""

from collections.abc import Callable, Sequence

from harvest_lib.pipeline.commit_log.entry import LogEntry
from harvest_lib.pipeline.encoded_messages import NOOPS, Head, message_of
from harvest_lib.pipeline.logged_messages import LoggedMessages, MessageRun
from harvest_lib.pipeline.message import PipelineMessage
from harvest_lib.pipeline.namespace import EVERYTHING, compiled
from harvest_lib.pipeline.transforms import Transform, TransformFailed, applied
from harvest_lib.pipeline.transforms.loading import is_ready

Park = Callable[[PipelineMessage, str], None]
"""Parks a message permanently, with the reason."""


class Routing:
    """A writer's filter and transforms. Used by one thread. Caches the filter's result per namespace: there are few."""

    def __init__(
        self,
        namespace: str = EVERYTHING,
        transforms: Sequence[tuple[str, Transform]] = (),
        *,
        park: Park | None = None,
    ) -> None:
        """`namespace` is a regular expression; raises ValueError for an invalid expression.

        `park` takes messages that transforms fail at; without it they stop the writer.
        """
        self._namespace = compiled(namespace)
        self._transforms = transforms
        self._park = park
        # Custom transforms may change the inside of data: they get a copy.
        self._shares_data = all(is_ready(transform) for _, transform in transforms)
        self._wanted: dict[bytes, bool] = {}

    def wants(self, entry: LogEntry) -> bool:
        """Return True if an entry passes the filter; it may still be dropped."""
        return self._passes((entry.timestamp, entry.mode, entry.key))

    def as_it_is(self, run: MessageRun) -> LoggedMessages | None:
        """Return the writer's messages of a run in memory; None if a transform needs each of them."""
        return None if self._transforms else run.selected(self._passes)

    def message(self, entry: LogEntry, run: MessageRun | None = None) -> PipelineMessage | None:
        """Return the writer's message of an entry, of a run in memory or of the log; None if it gets no message. Raises
        TransformFailed, and UnreadableEntry."""
        if not self.wants(entry):
            return None
        in_memory = run if self._shares_data else None
        message = message_of(entry) if in_memory is None else in_memory.message(entry.offset - in_memory.first)
        if not self._transforms:
            return message
        try:
            return applied(self._transforms, message)
        except TransformFailed as error:
            if self._park is None:
                raise
            self._park(message, str(error))
            return None

    def _passes(self, head: Head) -> bool:
        _, byte, key = head
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = self._namespace.search(key.decode(errors="replace")) is not None
        return wanted and byte not in NOOPS
