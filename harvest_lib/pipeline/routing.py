"""Routing of messages from the commit log to a writer: the writer's filter, then its transforms.

Promises
- A message that a writer does not get (another namespace, a NOOP, dropped, parked) counts as acknowledged.
- If a transform fails for a message, the message is parked durably before it counts as acknowledged. If the message
  cannot be parked, neither this message nor any later message counts as acknowledged.
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
"""A function that parks a message durably, with the reason."""


class Routing:
    """A writer's filter and transforms. A single thread uses it. The filter's result is cached per namespace, since
    there are few namespaces."""

    def __init__(
        self,
        namespace: str = EVERYTHING,
        transforms: Sequence[tuple[str, Transform]] = (),
        *,
        park: Park | None = None,
    ) -> None:
        """`namespace` is the filter, a regular expression. Raises ValueError for an invalid expression.

        If a transform fails for a message, `park` is called with the message. Without `park`, such a message stops the
        writer.
        """
        self._namespace = compiled(namespace)
        self._transforms = transforms
        self._park = park
        # Custom transforms get a copy of the message, because they may modify objects inside its data.
        self._shares_data = all(is_ready(transform) for _, transform in transforms)
        self._wanted: dict[bytes, bool] = {}

    def wants(self, entry: LogEntry) -> bool:
        """Return True if an entry passes the filter. A transform may still drop it."""
        return self._passes((entry.timestamp, entry.mode, entry.key))

    def as_it_is(self, run: MessageRun) -> LoggedMessages | None:
        """Return the messages of a run that pass the filter, unchanged; None if the writer has transforms, which need
        each message as an object."""
        return None if self._transforms else run.selected(self._passes)

    def message(self, entry: LogEntry, run: MessageRun | None = None) -> PipelineMessage | None:
        """Return the message that the writer gets for an entry; None if it gets no message. `run` is the run in memory
        that contains the entry, None if the entry was read from the log. Raises TransformFailed, UnreadableEntry."""
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
