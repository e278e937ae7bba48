"""The sensor that keeps one run of a daemon alive per code location and slot, or watches an external harvester.

A tick reads the runs of the job, the last heartbeat and the outbox. `dagster_harvest.decisions` decides the tick's
step, `dagster_harvest.outbox_report` reports the outbox. A tick queries brokers only if the harvester runs outside
Dagster, or if no run has reported a leader for a minute. It limits each statement to some seconds, never sleeps and
never harvests. The cursor holds the last tick's observations as JSON; the tick's message has the same observations in
words.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import dagster as dg

from dagster_harvest.daemon import GENERATION_TAG, LEAVING_TAG, SLOT_TAG, VERSION_TAG, location_of
from dagster_harvest.daemon_runs import daemon_runs
from dagster_harvest.decisions import DaemonRun, Decision, GiveUp, HandOver, Keep, Start, Unknown, Wait, decide
from dagster_harvest.heartbeat import Heartbeat, HeartbeatPlace, HeartbeatTable
from dagster_harvest.outbox_report import OutboxReport
from dagster_harvest.resources import HarvesterResource, version_of
from dagster_harvest.settings import OutboxSettings
from harvest_lib.errors import HarvestError
from harvest_lib.outbox import OutboxTable


def supervisor_sensor(settings: OutboxSettings, job: dg.JobDefinition | None) -> dg.SensorDefinition:
    """Return the sensor. It is on by default, because an outbox is added to be harvested. `job` is None in
    the modes `external` and `drain`."""

    @dg.sensor(
        name=f"{settings.name}_supervisor",
        job=job,
        minimum_interval_seconds=settings.daemon.check_every_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={settings.resource_key},
        description=(
            f"Keeps {settings.daemon.runs} run(s) of {settings.daemon_job_name} alive and evaluates the outbox's "
            "checks. Turn it off before you terminate a run that shall stay stopped."
            if settings.daemon.mode == "run"
            else "Watches the outbox, which no permanent run harvests, and evaluates its checks."
        ),
    )
    def supervise(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _Tick(context, settings).result()

    return supervise


class _Tick:
    def __init__(self, context: dg.SensorEvaluationContext, settings: OutboxSettings) -> None:
        self._context = context
        self._settings = settings
        self._resource: HarvesterResource = getattr(context.resources, settings.resource_key)
        origin = context.code_location_origin
        self._location = origin.location_name if origin is not None else "in-process"
        self._seen: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
        self._version: str | None = None
        self._leaving: list[HandOver] = []
        self._abandoned: list[str] = []
        self._runs: Mapping[int, Sequence[DaemonRun]] | None = None
        self._all_are_there = True
        self._alive: set[str] = set()

    def result(self) -> dg.SensorResult:
        requests: list[dg.RunRequest] = []
        said: list[str] = []
        state: dict[str, Any] = {}
        if self._settings.daemon.mode == "run":
            self._version = self._present_version()
            for slot, heartbeat in self._heartbeats().items():
                request, words, seen = self._keep(slot, heartbeat)
                requests += [request] if request is not None else []
                said.append(words)
                state[f"slot {slot}"] = seen
            self._hand_over()
            said += self._end_abandoned()
        report = OutboxReport(self._context.instance, self._settings, self._resource, self._seen.get("outbox", {}))
        events, words = report.make(self._alive)
        state["outbox"] = report.kept
        said.append(words)
        message = "; ".join(said)
        self._context.log.info(message)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=message if not requests else None,
            cursor=json.dumps(state),
            asset_events=events,
        )

    # -- the run

    def _keep(
        self, slot: int, heartbeat: Heartbeat | Unknown | None
    ) -> tuple[dg.RunRequest | None, str, dict[str, Any]]:
        decision = self._decide(slot, heartbeat)
        if isinstance(decision, GiveUp) and (suspect := self._suspected(slot, decision)) is not None:
            self._all_are_there = False
            words = f"run {decision.run_id} is considered dead if the next tick finds the same: {decision.reason}"
            return None, words, {"decision": "suspect", "reason": decision.reason, "suspect": suspect}
        given_up: list[str] = []
        while isinstance(decision, GiveUp) and decision.run_id not in given_up:
            given_up.append(decision.run_id)
            self._give_up(decision)
            decision = self._decide(slot, heartbeat)
        before = f"gave up {', '.join(given_up)}; " if given_up else ""
        seen: dict[str, Any] = {"decision": type(decision).__name__.lower(), "reason": decision.reason}
        if isinstance(heartbeat, Heartbeat):
            seen |= {
                "generation": heartbeat.generation,
                "run": heartbeat.run_id,
                "beat_age_seconds": round(heartbeat.age_seconds, 1),
            }
        if isinstance(decision, HandOver) or (isinstance(decision, Keep) and decision.is_alive):
            self._alive.add(decision.run_id)
        else:
            self._all_are_there = False
        match decision:
            case HandOver():
                self._leaving.append(decision)
                return None, f"{before}run {decision.run_id} has to hand over: {decision.reason}", seen
            case Keep() | GiveUp():
                return None, f"{before}run {decision.run_id}: {decision.reason}", seen
            case Wait():
                seen["failures"] = decision.failures
                return None, f"{before}none started for {decision.seconds:.0f} s: {decision.reason}", seen
            case Start():
                seen |= {"generation": decision.generation, "failures": decision.failures}
                return self._request(slot, decision), f"{before}starts generation {decision.generation}", seen
            case other:
                assert_never(other)

    def _suspected(self, slot: int, decision: GiveUp) -> dict[str, Any] | None:
        """Return what the cursor keeps about a run that looks dead for the first time, or has had too little time; None
        if it may be given up. After an outage of Postgres all heartbeats are old at first: living runs get time for a
        new heartbeat."""
        suspect: dict[str, Any] | None = self._seen.get(f"slot {slot}", {}).get("suspect")
        if suspect is None or suspect["run"] != decision.run_id:
            return {"run": decision.run_id, "at": time.time()}
        has_had_time = time.time() - suspect["at"] >= 2 * self._settings.daemon.heartbeat_every_seconds
        return None if has_had_time else suspect

    def _decide(self, slot: int, heartbeat: Heartbeat | Unknown | None) -> Decision:
        if self._runs is None:
            self._runs = daemon_runs(self._context.instance, self._settings, location=self._location)
        runs = self._runs.get(slot, [])
        return decide(runs, heartbeat, now=time.time(), settings=self._settings.daemon, version=self._version)

    def _present_version(self) -> str | None:
        try:
            return version_of(self._resource.config(), self._settings.daemon)
        except HarvestError:  # the code that needs the configuration reports the error
            return None

    def _hand_over(self) -> None:
        """Request an outdated run to end, so that a run of the present version can start. Outdated runs are requested
        one at a time: the next one when every slot has a living run again."""
        if self._leaving and self._all_are_there:
            self._context.instance.add_run_tags(self._leaving[0].run_id, {LEAVING_TAG: str(self._version)})

    def _end_abandoned(self) -> list[str]:
        """Request runs of a code location that was renamed or removed to end. Return what was done, in words."""
        runs = [run for each in self._abandoned if (run := self._context.instance.get_run_by_id(each)) is not None]
        for run in runs:
            if LEAVING_TAG not in run.tags:
                self._context.instance.add_run_tags(run.run_id, {LEAVING_TAG: str(self._version)})
        return [
            f"run {run.run_id} has to hand over: its code location {location_of(run)} has no supervisor any more"
            for run in runs
        ]

    def _request(self, slot: int, decision: Start) -> dg.RunRequest:
        key = f"{self._settings.name}:{slot}:{decision.generation}"
        tags = {GENERATION_TAG: str(decision.generation), SLOT_TAG: str(slot)}
        if self._version is not None:
            tags[VERSION_TAG] = self._version
        return dg.RunRequest(run_key=key, tags=tags)

    def _give_up(self, decision: GiveUp) -> None:
        run = self._context.instance.get_run_by_id(decision.run_id)
        self._runs = None  # another phase: they are read again
        if run is None or run.is_finished:
            return
        text = f"The supervisor gave this run up: {decision.reason}. Its process is gone, or cannot reach Postgres."
        if decision.was_canceled:
            self._context.instance.report_run_canceled(run, text)
        else:
            self._context.instance.report_run_failed(run, text)

    def _heartbeats(self) -> dict[int, Heartbeat | Unknown | None]:
        """Return the heartbeat of each slot, and record the tick in the table of heartbeats."""
        slots = range(self._settings.daemon.runs)
        name, location = self._settings.name, self._location
        try:
            outbox = OutboxTable.parse(self._resource.config().outbox_table)
            with self._resource.connect() as connection:
                heartbeats = HeartbeatTable.beside(connection, outbox)
                stale = self._settings.daemon.stale_after_seconds
                self._abandoned = heartbeats.supervise(name, location, stale_after_seconds=stale)
                return {
                    slot: heartbeats.read(HeartbeatPlace(name=name, location=location, slot=slot)) for slot in slots
                }
        except HarvestError as error:
            return dict.fromkeys(slots, Unknown(reason=error.cause))
