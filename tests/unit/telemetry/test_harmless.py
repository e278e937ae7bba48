"""Observers that raise: what goes on, and what is told."""

import logging

import pytest
from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics_api

from harvest_lib.telemetry import trace_context
from harvest_lib.telemetry.harmless import Harmless, guard_loggers
from harvest_lib.telemetry.otel_metrics import reported

pytestmark = pytest.mark.quick

_log = logging.getLogger("harvest_lib.tests.harmless")


def failing(harmless, error):
    with harmless:
        raise error


def test_each_kind_of_error_is_told_once(caplog):
    harmless = Harmless(_log, "observer_failed")
    for error in (ValueError(1), ValueError(2), SystemExit(3), SystemExit(4), KeyError(5)):
        failing(harmless, error)
    assert [each.exc_info[0] for each in caplog.records] == [ValueError, SystemExit, KeyError]
    assert {each.msg for each in caplog.records} == {"observer_failed"}


def test_an_interrupt_is_for_the_process():
    with pytest.raises(KeyboardInterrupt):
        failing(Harmless(_log, "observer_failed"), KeyboardInterrupt())


class Broken:
    """A provider, or a span, that raises at all that it is asked."""

    def __getattr__(self, name):
        raise ValueError(name)


def test_numbers_of_a_provider_that_raises_are_not_reported(monkeypatch, caplog):
    monkeypatch.setattr(metrics_api, "_METER_PROVIDER", Broken())
    done = []
    with reported(Broken()):
        done.append(True)
    assert done
    assert [each.msg for each in caplog.records] == ["metrics_not_reported"]


def test_a_span_that_raises_costs_a_record_its_trace_context(monkeypatch, caplog):
    class Raising(trace.NonRecordingSpan):
        """A span without a context."""

        def get_span_context(self):
            raise ValueError

    monkeypatch.setattr(trace_context, "_harmless", Harmless(_log, "trace_context_not_written"))
    with trace.use_span(Raising(trace.INVALID_SPAN_CONTEXT)):
        assert trace_context.current_headers() == ()
    assert [each.msg for each in caplog.records] == ["trace_context_not_written"]


def test_loggers_stay_what_they_are_but_for_what_their_handlers_raise(capsys, monkeypatch):
    monkeypatch.setattr("harvest_lib.telemetry.harmless._told_of", set())

    class Custom(logging.Logger):
        """A logger of the user's."""

        def handle(self, record):
            raise ValueError(record)

    custom = Custom("harvest_lib.tests.custom")
    monkeypatch.setitem(logging.Logger.manager.loggerDict, custom.name, custom)
    other = logging.getLogger("another_program")
    guard_loggers()
    guarded = type(custom)
    guard_loggers()
    assert type(custom) is guarded
    assert isinstance(custom, Custom)
    assert type(other) is logging.Logger
    for _ in range(3):
        custom.error("said")
    assert capsys.readouterr().err.count("is not reported again") == 1
