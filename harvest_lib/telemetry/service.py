"""Starts all reports of a working process: the HTTP listener, OpenTelemetry and systemd, as far as configured."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from harvest_lib.telemetry.liveness import supervised
from harvest_lib.telemetry.otel_metrics import reported
from harvest_lib.telemetry.server import Listener, Subject


@contextmanager
def observed(subject: Subject, address: str | None = None) -> Iterator[None]:
    """Report the metrics and the health of a pipeline or a consumer while the context is active.

    If `address` (`HOST:PORT`) is given, metrics and health are served there. If the process has a meter provider, the
    metrics are reported to OpenTelemetry. If the systemd unit requests it, systemd is notified that the process works.
    A process may have only one such block at a time. Raises ConfigError.
    """
    with ExitStack() as opened:
        if address:
            opened.enter_context(Listener(address, subject))
        opened.enter_context(reported(subject))
        opened.enter_context(supervised(subject.live))
        yield
