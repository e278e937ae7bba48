"""Observers of a user's that raise, at each step at which OpenTelemetry calls them."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler


class Panic(BaseException):
    """What bindings to other languages raise."""


class Raising(SpanProcessor, Sampler):
    """Observers that raise at a step; `calls` counts how often."""

    def __init__(self, step, error):
        self._step, self._error, self.calls = step, error, 0

    def _at(self, step):
        if step == self._step:
            self.calls += 1
            raise self._error

    def on_start(self, span, parent_context=None):  # noqa: ARG002 - OpenTelemetry's own
        self._at("on_start")

    def on_end(self, span):  # noqa: ARG002 - as above
        self._at("on_end")

    def should_sample(self, *_arguments, **_named):
        self._at("sampler")

    def get_description(self):
        return "raises"

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have OpenTelemetry trace by it."""
        provider = TracerProvider(**({"sampler": self} if self._step == "sampler" else {}))
        provider.add_span_processor(self)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", self if self._step == "provider" else provider)

    def get_tracer(self, *_arguments, **_named):
        self._at("provider")
