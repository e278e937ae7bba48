"""The span of a consumer's transaction, if the process has a tracer provider.

The span lasts from the first message to the commit, and is the current span while the user's functions run. It has
links to the spans in which the messages were written, if those spans were recorded. If a tracer, a sampler or a span
processor raises an exception, before or after the commit, only the span is lost.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from harvest_lib.consume.checkpoint import ShardId
from harvest_lib.sequencing.batch import Batch, Message
from harvest_lib.telemetry.batch_span import BatchSpan
from harvest_lib.telemetry.harmless import Harmless
from harvest_lib.telemetry.trace_context import TRACEPARENT, is_sampled

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_MOST_MESSAGES = 1_000
"""Headers are read for at most this many messages of a transaction."""


class TransactionSpan:
    """A span that lasts from the construction of this object to the call of `end`, which is made on the same thread."""

    def __init__(self, tracer: "Tracer", shard: ShardId, harmless: Harmless) -> None:
        """Begin the span. Raises the tracer's errors; later errors go to `harmless`."""
        from opentelemetry import context, trace  # noqa: PLC0415 - installed wherever a tracer is

        attributes = {
            "messaging.consumer.group.name": shard.consumer,
            "messaging.destination.partition.id": str(shard.partition),
        }
        self._span = BatchSpan(tracer, "process", attributes)
        self._span.topic = shard.topic
        self._harmless = harmless
        self._left = _MOST_MESSAGES
        self._token = context.attach(trace.set_span_in_context(self._span.span))

    def take(self, messages: Iterable[Message]) -> Iterable[Message]:
        """Return the same messages, and link the span to their writers. The links are made at once; for a single-pass
        iterable they are made while the caller reads it."""
        if not isinstance(messages, (tuple, Batch)):
            return self._read(messages)
        for message in messages[: self._left] if self._span.room else ():
            self._link(message)
        return messages

    def _read(self, messages: Iterable[Message]) -> Iterator[Message]:
        for message in messages:
            self._link(message)
            yield message

    def _link(self, message: Message) -> None:
        if not (self._left and self._span.room):
            return
        self._left -= 1
        with self._harmless:
            for name, value in message.record.headers() or ():
                if name == TRACEPARENT:
                    text = value.decode("latin-1") if value is not None else ""
                    self._span.link([text] if is_sampled(text) else ())
                    break

    def end(self, messages: int, error: str = "") -> None:
        """End the span. `messages` is the number of messages in the transaction. `error` is the name of the
        transaction's error; empty without an error."""
        from opentelemetry import context  # noqa: PLC0415 - as above

        with self._harmless:
            context.detach(self._token)
        with self._harmless:
            self._span.messages = messages
            self._span.end(error)
