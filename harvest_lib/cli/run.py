"""`harvest run`: runs one process of a pool until it is requested to stop; the equivalent of goharvest's reaper."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from harvest_lib.cli.check import refuse_to_start
from harvest_lib.cli.options import ConfigFile, Listen, LogFormatOption, configuration, parse_level
from harvest_lib.cli.terminal import stop_on_signals, watched
from harvest_lib.errors import HarvestError
from harvest_lib.process.logging_levels import NAMED_LEVELS

if TYPE_CHECKING:
    from harvest_lib.harvester.harvest import Drained, Harvest

_Result = TypeVar("_Result")

_LOOK_SECONDS = 0.2
"""Interval of the checks whether the harvester runs, and whether a stop was requested."""
_START_SECONDS = 1.0
"""Maximum wait for a harvester that is still starting when a stop is requested."""


def run(
    config: ConfigFile = None,
    log_format: LogFormatOption = "console",
    log_level: Annotated[
        str | None,
        typer.Option(
            parser=parse_level,
            metavar="LEVEL",
            help=f"One of {NAMED_LEVELS}. Default: the file's logging.level, else info.",
        ),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Stop once the outbox is empty.")] = False,
    no_status: Annotated[
        bool,
        typer.Option("--no-status", help="Hide the status line, which is shown on a terminal below a console log."),
    ] = False,
    alive_file: Annotated[
        Path | None,
        typer.Option(
            envvar="HARVEST_ALIVE_FILE",
            metavar="FILE",
            help="A file that is touched each second while `/livez` is healthy, for probes. --drain makes none.",
        ),
    ] = None,
    listen: Listen = None,
) -> None:
    """Harvest until SIGTERM or Ctrl-C. Then wait for records in flight, and release leadership.

    You can start any number of processes, on any number of machines. A single
    process leads, the others stand by.

    If it cannot start, it prints all problems, as `harvest check` does.

    Examples:

      harvest run -f harvest.yaml

      harvest run -f harvest.yaml --log-format json --log-level debug

      HARVEST_LEADER_GROUP_ID=billing HARVEST_DSN="host=db dbname=shop" harvest run
    """
    asked = threading.Event()
    stop_on_signals(asked.set)

    from harvest_lib.cli.log_output import configure_logging
    from harvest_lib.cli.status_line import status_line
    from harvest_lib.config.reading import refuse_unknown_variables
    from harvest_lib.harvester.harvest import Harvest, State
    from harvest_lib.harvester.interpreter import tune_interpreter
    from harvest_lib.harvester.telemetry.health import live
    from harvest_lib.kafka_client import LIBRDKAFKA
    from harvest_lib.process.open_files import raise_limit
    from harvest_lib.telemetry.liveness import Liveness

    settings = configuration(config, elects=True)
    refuse_unknown_variables()
    handler = configure_logging(log_format, log_level or settings.logging_level)
    tune_interpreter()
    raise_limit()
    liveness = Liveness(alive_file)
    started: list[Harvest] = []
    # If the start is refused, the report has librdkafka's last error as evidence.
    handler.addFilter(lambda record: record.name != LIBRDKAFKA or any(each.has_started for each in started))
    harvest = Harvest(settings.harvest)
    started.append(harvest)

    def stop() -> None:
        asked.set()
        harvest.stop()

    def work() -> "Drained | None":
        if drain:
            return harvest.drain()
        with harvest, liveness:
            while harvest.state is State.RUNNING:
                if live(harvest).is_healthy:
                    liveness.show()
                harvest.await_stopped(_LOOK_SECONDS)
        return None

    stop_on_signals(stop)
    if asked.is_set():
        return
    shown = watched() and log_format == "console" and not no_status
    done = None
    with served_harvest(listen, harvest):
        try:
            with status_line(harvest, handler) if shown else nullcontext():
                done = _unless_stopped(work, asked, harvest)
        except HarvestError as error:
            if harvest.has_started:
                raise
            refusal = error
            if not asked.is_set():
                _unless_stopped(lambda: refuse_to_start(settings.harvest, refusal), asked, harvest)
    if done is not None:
        typer.echo(f"{done.records} records in {done.seconds:.1f} s")


def _unless_stopped(work: Callable[[], _Result], asked: threading.Event, harvest: "Harvest") -> _Result | None:
    """Run `work` in another thread. Return its result, or raise its error. If a stop is requested before the harvester
    has started, return None after about a second, because `work` may be waiting for a server. The main thread never
    waits for a server, so that its signal handlers run at once."""
    result: Future[_Result] = Future()

    def do() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised below
            result.set_exception(error)

    thread = threading.Thread(target=do, name="harvest-command", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        if asked.is_set() and not harvest.has_started:
            thread.join(_START_SECONDS)
            if thread.is_alive() and not harvest.has_started:
                return None
    return result.result(timeout=0)


@contextmanager
def served_harvest(address: str | None, harvest: "Harvest") -> Iterator[None]:
    """Report metrics and health of a harvester while the context is active. If `address` (`HOST:PORT`) is given, serve
    them there. If the process has a meter provider, report the metrics to OpenTelemetry. Raises ConfigError."""
    from harvest_lib.harvester.telemetry import HarvestTelemetry
    from harvest_lib.telemetry.otel_metrics import is_reported, reported
    from harvest_lib.telemetry.server import Listener

    with ExitStack() as opened:
        if address or is_reported():
            telemetry = opened.enter_context(HarvestTelemetry(harvest))
            if address:
                opened.enter_context(Listener(address, telemetry))
            opened.enter_context(reported(telemetry))
        yield
