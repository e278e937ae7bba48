"""The W3C trace context of records, where the process uses OpenTelemetry.

OpenTelemetry is never imported for it: a process that has a current span or a tracer provider has imported it.
"""

import logging
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from harvest_lib.telemetry.harmless import Harmless

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, Tracer

_harmless = Harmless(logging.getLogger(__name__), "trace_context_not_written")

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
"""The headers of a record that name the span of its writing."""
TRACEPARENT_CHARS = 55
"""Length of a `traceparent` of version 00, the only version."""
_SAMPLED = "13579bdf"
"""Last digits of flags with the lowest bit set."""
_PARTS = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
SCOPE = "harvest_lib"
"""The name of the tracer and the meter."""


def is_imported(module: str) -> bool:
    """Return True if the process has imported a module of OpenTelemetry."""
    return sys.modules.get(f"opentelemetry.{module}") is not None


def version() -> str:
    """Return the version of the tracer and the meter."""
    return str(import_module("harvest_lib").__version__)  # imported late, because the package imports this module


def current_headers() -> Sequence[tuple[str, str]]:
    """Return the headers of the current span, if there is a current span."""
    if not is_imported("trace"):
        return ()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    headers: dict[str, str] = {}
    with _harmless:  # a record is written without them
        TraceContextTextMapPropagator().inject(headers)
    return tuple(headers.items())


def configured_tracer() -> "Tracer | None":
    """Return the tracer of the process's tracer provider, None if no provider is set."""
    if not is_imported("trace"):
        return None
    from opentelemetry import trace  # noqa: PLC0415

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer(SCOPE, version())


def is_sampled(value: str) -> bool:
    """Return True if the value of a header may be a `traceparent`, of a span that is recorded."""
    return len(value) == TRACEPARENT_CHARS and value.isascii() and value[-1] in _SAMPLED


def context_of(traceparent: str) -> "SpanContext | None":
    """Return the context of a `traceparent`, None if it is malformed. OpenTelemetry has to be installed."""
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    parts = _PARTS.fullmatch(traceparent)
    if parts is None:
        return None
    trace, span, flags = (int(each, 16) for each in parts.groups())
    context = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
