"""The run that harvests: a job with a single op. The op starts the harvester and ends when the harvester ends.

Steps
1. claim the run's row of heartbeats (`dagster_harvest.heartbeat`); the claim fails if another living run has the row
2. start the harvester, which leads or is a standby
3. report numbers every few seconds: a log line, and an observation of each topic with a changed number; materialize
   topics that got records (`dagster_harvest.topic_reports`)
4. end when Dagster terminates the run by SIGTERM, when the harvester fails, when another run has claimed the row, or
   when the supervisor requests another version: the harvester stops and hands leadership over, and the row records an
   orderly stop
"""

import logging
import os
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress

import dagster as dg

from dagster_harvest.decisions import is_at_work
from dagster_harvest.forwarded_logs import forwarded_logs
from dagster_harvest.heartbeat import HeartbeatPlace
from dagster_harvest.heartbeat_thread import HeartbeatThread
from dagster_harvest.leading import Leading
from dagster_harvest.numbers import Numbers
from dagster_harvest.resources import HarvesterResource, version_of
from dagster_harvest.settings import OutboxSettings
from dagster_harvest.topic_reports import TopicReports
from harvest_lib.errors import ConfigError, DatabaseError, HarvestError, LifecycleError, OutboxTableError
from harvest_lib.events import Event, LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked, MeterRead
from harvest_lib.harvester.harvest import STOP_TIMEOUT_SECONDS, Harvest
from harvest_lib.harvester.interpreter import tune_interpreter
from harvest_lib.harvester.telemetry import HarvestTelemetry
from harvest_lib.harvester.watermark import DeliveryProgress, Watermark
from harvest_lib.outbox import OutboxTable
from harvest_lib.telemetry.otel_metrics import is_reported, reported
from harvest_lib.telemetry.server import Listener, parse_address

_log = logging.getLogger(__name__)

DAEMON_TAG = "harvest/daemon"
GENERATION_TAG = "harvest/generation"
SLOT_TAG = "harvest/slot"
WORKED_TAG = "harvest/worked"
"""The tag of a run that has delivered for `healthy_after_working_seconds`. If a run with this tag fails, failures of
earlier runs do not delay the next run."""

VERSION_TAG = "harvest/version"
"""The tag with the version that a run was started with: the version of library and configuration."""
LEAVING_TAG = "harvest/hand_over_to"
"""The tag by which the supervisor requests a run to end, so that a run of another version can start."""

_STEP_SECONDS = 0.2
"""The longest time for which a signal handler may be delayed."""


def harvest_in(context: dg.OpExecutionContext, settings: OutboxSettings) -> None:
    """Harvest in a run until it is terminated, or asked to hand over, or an error that is not temporary ends it.

    Raises Failure for that error.
    """
    failure: dg.Failure | None = None
    try:
        _Daemon(context, settings).run()
    except HarvestError as error:
        failure = as_failure(error)
    if failure is not None:  # outside the handler: a chained cause may quote a row, and Dagster stores causes
        raise failure


def daemon_job(
    settings: OutboxSettings, execute: Callable[[dg.OpExecutionContext], None] | None = None
) -> dg.JobDefinition:
    """Return the job whose run the supervisor keeps alive. `execute` is the body of its op; the default harvests."""

    @dg.op(
        name=f"harvest_{settings.name}",
        required_resource_keys={settings.resource_key},
        tags={"kind": "kafka", **settings.op.daemon.tags},
        pool=settings.op.daemon.pool,
    )
    def harvest(context: dg.OpExecutionContext) -> None:
        """Harvest until the run is terminated or an error that is not temporary ends it."""
        if execute is None:
            harvest_in(context, settings)
        else:
            execute(context)

    @dg.job(
        name=settings.daemon_job_name,
        description=f"Moves the outbox {settings.stated_table or settings.name!r} to Kafka; "
        f"kept alive by {settings.name}_supervisor.",
        executor_def=dg.in_process_executor,
        # Dagster's own retries are off because they ignore heartbeats: only the supervisor starts the next run. The
        # deployment's limit on run time (`run_monitoring.max_runtime_seconds`) is off because this run has no end.
        tags={
            **settings.run_tags.of("daemon"),
            DAEMON_TAG: settings.name,
            "dagster/max_retries": "0",
            dg.MAX_RUNTIME_SECONDS_TAG: "0",
        },
    )
    def job() -> None:
        harvest()

    return job


def as_failure(error: HarvestError) -> dg.Failure:
    """Return the error as a failure that Dagster shows with cause, evidence and next step."""
    return dg.Failure(
        description=str(error),
        metadata={"cause": error.cause, "evidence": error.evidence or "none", "next_step": error.next_step},
        allow_retries=False,
    )


def location_of(run: dg.DagsterRun) -> str:
    """Return the code location of a run."""
    origin = run.remote_job_origin
    return origin.location_name if origin is not None else "in-process"


class _Daemon:
    """A run from the claim of its heartbeat row to the stop of its harvester."""

    def __init__(self, context: dg.OpExecutionContext, settings: OutboxSettings) -> None:
        self._context = context
        self._settings = settings
        self._resource: HarvesterResource = getattr(context.resources, settings.resource_key)
        self._config = self._resource.config()
        self._told: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._generation = 0
        self._version = version_of(self._config, settings.daemon)
        self._leading = Leading(self._config.name)
        self._last = (time.monotonic(), 0)
        self._reported: Numbers | None = None
        self._watermark = Watermark()
        self._worked_seconds = 0.0
        self._has_told_of_work = False

    def run(self) -> None:
        run, daemon = self._context.run, self._settings.daemon
        place = HeartbeatPlace(
            name=self._settings.name, location=location_of(run), slot=int(run.tags.get(SLOT_TAG, "0"))
        )
        outbox = OutboxTable.parse(self._config.outbox_table)
        heartbeat_thread = HeartbeatThread(
            self._resource.connect, outbox, place, run_id=run.run_id, every_seconds=daemon.heartbeat_every_seconds
        )
        given = run.tags.get(GENERATION_TAG)
        try:
            self._generation = heartbeat_thread.start(
                generation=int(given) if given else None, stale_after_seconds=daemon.stale_after_seconds
            )
            with forwarded_logs(self._told):
                self._harvest(heartbeat_thread, place.slot)
        finally:
            heartbeat_thread.close()

    def _harvest(self, heartbeat_thread: HeartbeatThread, slot: int) -> None:
        tune_interpreter()  # Dagster's launchers give each run a process of its own
        harvest = Harvest(self._config)
        self._topics = TopicReports(
            self._context, self._settings, self._config, harvest.count_topics(), _without_dagsters_storage
        )
        with self._served(harvest, slot):
            self._serve(harvest, heartbeat_thread)

    @contextmanager
    def _served(self, harvest: Harvest, slot: int) -> Iterator[None]:
        """Serve the harvester's numbers at the address in the settings, with a port of its own for each run of a
        location. Report the numbers to OpenTelemetry if the process has a meter provider."""
        listen = self._settings.daemon.listen or os.environ.get("HARVEST_LISTEN")
        with ExitStack() as opened:
            if listen or is_reported():
                telemetry = opened.enter_context(HarvestTelemetry(harvest))
                if listen:
                    opened.enter_context(self._listening(listen, telemetry, slot))
                opened.enter_context(reported(telemetry))
            yield

    def _listening(self, listen: str, telemetry: HarvestTelemetry, slot: int) -> AbstractContextManager[object]:
        """Listen, and log the address. Raises ConfigError for an address in the settings that is unavailable. An
        unavailable address in HARVEST_LISTEN is only logged, because all runs of a machine share that variable."""
        host, port = parse_address(listen)
        address = f"[{host}]:{port + slot}" if ":" in host else f"{host}:{port + slot}"
        try:
            listener = Listener(address, telemetry)
        except ConfigError as error:
            if self._settings.daemon.listen is not None:
                raise
            self._say(f"serves no metrics: {error.cause}")  # a run of another location serves its own there
            return nullcontext()
        self._say(f"serves its metrics at {listener.address}")
        return listener

    def _serve(self, harvest: Harvest, heartbeat_thread: HeartbeatThread) -> None:
        harvest.set_event_handler(self._hear)
        try:
            harvest.start()
            self._say(f"harvests as generation {self._generation} by {self._version}, or is a standby")
            self._tell_version()
            due = time.monotonic() + min(1.0, self._settings.daemon.report_every_seconds)
            while not harvest.await_stopped(_STEP_SECONDS):
                self._pass_on()
                self._topics.materialize()
                if heartbeat_thread.was_succeeded.is_set():
                    raise LifecycleError(
                        "another run replaced this run",
                        evidence=f"the row of {self._settings.name!r} in harvest_daemons names another run",
                        next_step="nothing: the other run harvests; check why this run was considered dead",
                    )
                if time.monotonic() >= due:
                    if (successor := self._leaves_for()) is not None:
                        is_new = successor != self._version
                        changed = f"code or configuration are {successor} now, this is {self._version}"
                        self._say(f"hands over: {changed if is_new else 'it has run for `rotate_after_hours`'}")
                        break
                    with _without_dagsters_storage():
                        self._leading.tell(self._context.instance, self._context.run.run_id)
                    self._report(harvest)
                    due = time.monotonic() + self._settings.daemon.report_every_seconds
        finally:  # an interrupt is a BaseException
            self._stop(harvest)

    def _stop(self, harvest: Harvest) -> None:
        began = time.monotonic()
        harvest.stop()
        with suppress(Exception):  # the error that ended the harvester is being raised already
            if not harvest.await_stopped(STOP_TIMEOUT_SECONDS):
                self._say(f"the harvester did not stop within {STOP_TIMEOUT_SECONDS:g} s", logging.ERROR)
        self._pass_on()
        self._topics.finish()
        self._say(f"stopped after {harvest.delivered_records:,} records, in {time.monotonic() - began:.2f} s")

    def _report(self, harvest: Harvest) -> None:
        now, delivered = time.monotonic(), harvest.delivered_records
        then, before = self._last
        self._last = now, delivered
        leader_id = harvest.leader_id
        self._topics.progress = progress = self._progress()
        numbers = Numbers(
            at=now,
            delivered=delivered,
            rate=(delivered - before) / (now - then),
            in_flight=harvest.in_flight_records,
            leader_id=str(leader_id) if leader_id is not None else None,
            generation=self._generation,
            version=self._version,
            waiting=progress.waiting if progress is not None else None,
        )
        self._tell_of_work(numbers, delivered - before, now - then)
        self._topics.observe(numbers)
        if numbers.says_nothing_after(self._reported):
            return
        self._reported = numbers
        self._say(numbers.line())

    def _tell_of_work(self, numbers: Numbers, delivered: int, seconds: float) -> None:
        """Tag the run after it has worked for long enough. If Dagster's storage is unavailable, the next report tries
        again."""
        waiting = numbers.waiting.records if numbers.waiting is not None else None
        if is_at_work(leads=numbers.leader_id is not None, delivered=delivered, waiting=waiting):
            self._worked_seconds += seconds
        if self._has_told_of_work or self._worked_seconds < self._settings.daemon.healthy_after_working_seconds:
            return
        with _without_dagsters_storage():
            self._context.instance.add_run_tags(self._context.run.run_id, {WORKED_TAG: "true"})
            self._has_told_of_work = True

    def _tell_version(self) -> None:
        """Tag the run with its version if it has no such tag. Warn if the tag, set by the supervisor, differs."""
        run = self._context.run
        if (given := run.tags.get(VERSION_TAG)) is None:
            with _without_dagsters_storage():
                self._context.instance.add_run_tags(run.run_id, {VERSION_TAG: self._version})
        elif given != self._version:
            self._say(
                f"the code server would harvest by {given}, this process by {self._version}: "
                "their packages, files or variables differ",
                logging.WARNING,
            )

    def _leaves_for(self) -> str | None:
        """Return the version to which the supervisor requests this run to hand over, None if there is no request."""
        run = None
        with _without_dagsters_storage():
            run = self._context.instance.get_run_by_id(self._context.run.run_id)
        return run.tags.get(LEAVING_TAG) if run is not None else None

    def _progress(self) -> DeliveryProgress | None:
        try:
            with self._resource.connect() as connection:
                return self._watermark.read(connection, self._config)
        except (DatabaseError, OutboxTableError) as error:  # the harvester itself retries, or ends with the error
            self._say(f"the backlog could not be read: {error}", logging.WARNING)
            return None

    def _hear(self, event: Event) -> None:
        self._leading.hear(event)
        match event:
            case LeaderAcquired():
                self._told.put((logging.INFO, f"leads shard {event.shard} as {event.leader_id}"))
            case LeaderRefreshed():
                self._told.put((logging.WARNING, f"leads shard {event.shard} under a new id, {event.leader_id}"))
            case LeaderRevoked():
                self._told.put((logging.INFO, f"leads shard {event.shard} no longer: leadership was handed over"))
            case LeaderFenced():
                self._told.put((logging.WARNING, f"fenced itself off shard {event.shard}: it could not prove to lead"))
            case MeterRead():
                pass

    def _pass_on(self) -> None:
        """Log the messages of other threads; only this thread writes Dagster's event log."""
        with suppress(queue.Empty):
            while True:
                level, text = self._told.get_nowait()
                self._say(text, level)

    def _say(self, text: str, level: int = logging.INFO) -> None:
        with _without_dagsters_storage():
            self._context.log.log(level, text)


@contextmanager
def _without_dagsters_storage() -> Iterator[None]:
    """Log and ignore errors of Dagster's own storage within the block: harvesting does not depend on reporting."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - any storage has its own errors; an interrupt is a BaseException
        _log.warning("event_log_failed", extra={"reason": type(error).__name__})
