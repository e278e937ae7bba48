"""What of the commit log a writer gets, and in which form: by its filter, then its transforms.

Promises
- What a writer does not get (another namespace, a NOOP, dropped by a transform, parked) counts as acknowledged.
- A message that a transform fails at is parked durably before it counts so, or nothing from it on does.
"""

from collections.abc import Callable, Sequence

from harvest_lib.pipeline.commit_log.entry import Entry
from harvest_lib.pipeline.log_entries import is_noop, message_of
from harvest_lib.pipeline.message import Message
from harvest_lib.pipeline.message_cache import MessageCache
from harvest_lib.pipeline.namespace import NamespaceFilter
from harvest_lib.pipeline.transforms import Transform, TransformFailed, applied
from harvest_lib.pipeline.transforms.loading import is_ready

Park = Callable[[Message, str], None]
"""Sets a message aside for good, with the reason."""


class Routing:
    """A writer's filter and transforms. Used by one thread."""

    def __init__(
        self,
        namespace: NamespaceFilter,
        transforms: Sequence[tuple[str, Transform]] = (),
        *,
        park: Park | None = None,
        message_cache: MessageCache | None = None,
    ) -> None:
        """`park` takes what transforms fail at; without it they stop the writer. `message_cache` saves decoding."""
        self._namespace = namespace
        self._transforms = transforms
        self._park = park
        # What others wrote may change what is inside of data: they get their own.
        self._message_cache = message_cache if all(is_ready(transform) for _, transform in transforms) else None
        self._wanted: dict[bytes, bool] = {}

    def wants(self, entry: Entry) -> bool:
        """Tell whether an entry passes the filter; it may still be dropped."""
        wanted = self._wanted.get(entry.key)
        if wanted is None:
            wanted = self._wanted[entry.key] = self._namespace.matches(entry.key.decode(errors="replace"))
        return wanted and not is_noop(entry)

    def message(self, entry: Entry) -> Message | None:
        """Return what the writer gets of an entry. Raises TransformFailed, and Unreadable."""
        if not self.wants(entry):
            return None
        message = (self._message_cache.get(entry.offset) if self._message_cache is not None else None) or message_of(
            entry
        )
        if not self._transforms:
            return message
        try:
            return applied(self._transforms, message)
        except TransformFailed as error:
            if self._park is None:
                raise
            self._park(message, str(error))
            return None
