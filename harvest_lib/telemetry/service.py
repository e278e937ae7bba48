"""All reports of a working process: the listener, OpenTelemetry and systemd, each where it is configured."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from harvest_lib.telemetry.liveness import supervised
from harvest_lib.telemetry.otel_metrics import reported
from harvest_lib.telemetry.server import Listener, Subject


@contextmanager
def observed(subject: Subject, address: str | None = None) -> Iterator[None]:
    """Report the numbers and the health of a pipeline or a consumer while it runs.

    They are served at `address` (`HOST:PORT`), if given; the numbers go to OpenTelemetry, if the process has a meter
    provider; systemd is notified that the process works, if it requests that. A process has a single such block at a
    time. Raises ConfigError.
    """
    with ExitStack() as opened:
        if address:
            opened.enter_context(Listener(address, subject))
        opened.enter_context(reported(subject))
        opened.enter_context(supervised(subject.live))
        yield
