"""The span of messages that are sent, or processed, together.

Names and attributes are those of OpenTelemetry's conventions for messaging, and ours begin with `harvest.`. Nothing of
a message's key or value is in a span.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from harvest_lib.telemetry.trace_context import context_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

MOST_LINKS = 128
"""Links that OpenTelemetry's SDK keeps of a span by default."""


class BatchSpan:
    """The span of one batch, of a trace of its own, from when it is made. Used by one thread."""

    def __init__(
        self,
        tracer: "Tracer",
        operation: Literal["send", "process"],
        attributes: Mapping[str, str | int],
    ) -> None:
        from opentelemetry.context import Context  # noqa: PLC0415 - who has a tracer has it
        from opentelemetry.trace import SpanKind  # noqa: PLC0415

        of_operation = {
            "messaging.system": "kafka",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
        }
        self.operation = operation
        self.span: Span = tracer.start_span(
            operation,
            Context(),
            # A sender's context would be that which consumers continue, were it a PRODUCER's.
            kind=SpanKind.CLIENT if operation == "send" else SpanKind.CONSUMER,
            attributes={**of_operation, **attributes},
        )
        self.is_recorded = self.span.is_recording()
        self.messages = 0
        self.topic = ""  # of all messages, if they are of one
        self._linked: set[str] = set()

    @property
    def room(self) -> int:
        """Return the number of links that it still takes; 0 if it is not recorded."""
        return MOST_LINKS - len(self._linked) if self.is_recorded else 0

    def link(self, traceparents: Iterable[str]) -> None:
        """Link it to the spans that these name, each once; a malformed one names none. The caller gives at most as many
        as there is `room` for."""
        for each in traceparents:
            if each not in self._linked and (context := context_of(each)) is not None:
                self._linked.add(each)
                self.span.add_link(context)

    def end(self, error: str = "", reason: str = "") -> None:
        """End it: well, or by an error of a kind."""
        try:
            self._name(error, reason)
        finally:
            self.span.end()

    def _name(self, error: str, reason: str) -> None:
        if self.is_recorded:
            self.span.set_attribute("messaging.batch.message_count", self.messages)
            if self.topic:
                self.span.update_name(f"{self.operation} {self.topic}")
                self.span.set_attribute("messaging.destination.name", self.topic)
            if error:
                from opentelemetry.trace import StatusCode  # noqa: PLC0415

                self.span.set_attribute("error.type", error)
                self.span.set_status(StatusCode.ERROR, reason or None)
