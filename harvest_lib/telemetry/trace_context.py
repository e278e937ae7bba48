"""The W3C trace context of records, if the process uses OpenTelemetry.

This module never imports OpenTelemetry on its own: a process with a current span or a tracer provider has imported it.
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
"""Headers of a record that identify the span in which the record was written."""
TRACEPARENT_CHARS = 55
"""Length of a `traceparent` of version 00, the only version."""
_SAMPLED = "13579bdf"
"""Hexadecimal digits with the lowest bit set: the last digit of the flags of a sampled span."""
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
    """Return the trace context of the current span as headers (name, value); empty without a current span."""
    if not is_imported("trace"):
        return ()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    headers: dict[str, str] = {}
    with _harmless:  # after an error the record is written without these headers
        TraceContextTextMapPropagator().inject(headers)
    return tuple(headers.items())


def configured_tracer() -> "Tracer | None":
    """Return a tracer of the process's tracer provider; None if no provider is set."""
    if not is_imported("trace"):
        return None
    from opentelemetry import trace  # noqa: PLC0415

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer(SCOPE, version())


def is_sampled(value: str) -> bool:
    """Return True if a header's value looks like the `traceparent` of a sampled span. A malformed value may pass."""
    return len(value) == TRACEPARENT_CHARS and value.isascii() and value[-1] in _SAMPLED


def context_of(traceparent: str) -> "SpanContext | None":
    """Return the span context of a `traceparent`; None if it is malformed. OpenTelemetry has to be installed."""
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    parts = _PARTS.fullmatch(traceparent)
    if parts is None:
        return None
    trace, span, flags = (int(each, 16) for each in parts.groups())
    context = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
