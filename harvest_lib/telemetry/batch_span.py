"""The OpenTelemetry span of a batch: messages that are sent, or processed, together.

Names and attributes follow OpenTelemetry's conventions for messaging; additional attributes begin with `harvest.`. A
span never contains any part of a message's key or value.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from harvest_lib.telemetry.trace_context import context_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

MOST_LINKS = 128
"""Maximum number of links of a span, by default, in OpenTelemetry's SDK."""


class BatchSpan:
    """The span of a batch, in a trace of its own. The span starts when this object is constructed. Used by a single
    thread."""

    def __init__(
        self,
        tracer: "Tracer",
        operation: Literal["send", "process"],
        attributes: Mapping[str, str | int],
    ) -> None:
        from opentelemetry.context import Context  # noqa: PLC0415 - a process with a tracer has it
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
            # Not PRODUCER: consumers would then continue the batch's context.
            kind=SpanKind.CLIENT if operation == "send" else SpanKind.CONSUMER,
            attributes={**of_operation, **attributes},
        )
        self.is_recorded = self.span.is_recording()
        self.messages = 0
        self.topic = ""  # set if all messages have the same topic
        self._linked: set[str] = set()

    @property
    def room(self) -> int:
        """Return the number of links that can still be added; 0 if the span is not recorded."""
        return MOST_LINKS - len(self._linked) if self.is_recorded else 0

    def link(self, traceparents: Iterable[str]) -> None:
        """Link the span to these trace contexts. Repeated and malformed contexts are ignored. The caller must pass at
        most `room` contexts."""
        for each in traceparents:
            if each not in self._linked and (context := context_of(each)) is not None:
                self._linked.add(each)
                self.span.add_link(context)

    def end(self, error: str = "", reason: str = "") -> None:
        """End the span. `error` is the kind of the error that ended the batch, and `reason` its description."""
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
