"""Telemetry of a harvester: the server of `--listen`, and the report to OpenTelemetry."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.telemetry import HarvestTelemetry
from harvest_lib.telemetry.otel_metrics import is_reported, reported
from harvest_lib.telemetry.server import Listener


@contextmanager
def served_harvest(address: str | None, harvest: Harvest) -> Iterator[None]:
    """Serve numbers and health of a harvester at `HOST:PORT`, if there is an address, and report the numbers to
    OpenTelemetry, if the process has a meter provider. Raises ConfigError."""
    with ExitStack() as opened:
        if address or is_reported():
            telemetry = opened.enter_context(HarvestTelemetry(harvest))
            if address:
                opened.enter_context(Listener(address, telemetry))
            opened.enter_context(reported(telemetry))
        yield
