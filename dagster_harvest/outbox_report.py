"""The supervisor's report on an outbox: the verdicts of its checks, and observations of its present numbers.

A tick reads the state of the outbox and reports only news, because each event takes some kilobytes in Dagster's
storage. A verdict is reported when it changes, when its number has moved by a step, and once in two hours. While a
check fails, the step is 5 %. While it passes, the step is a tenth of the threshold, and reports are five minutes apart.
Verdicts are compared with Dagster's storage, so the next tick corrects an outdated verdict of an evaluation on request.
Numbers are observed together with news, five minutes after the last observation if they have changed, and once an hour.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import dagster as dg
import psycopg

from dagster_harvest.asset_pages import place_of
from dagster_harvest.checks import Verdict, unreadable
from dagster_harvest.leading import leaders_by_runs
from dagster_harvest.outbox_state import LEADERLESS_SECONDS, STATE_CHECKS, OutboxState, judged_state, read_state
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings
from dagster_harvest.topics_outside import OutsideTopics
from harvest_lib.config import HarvestConfig
from harvest_lib.errors import HarvestError
from harvest_lib.harvester.watermark import DeliveryProgress
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedSummary

_SAME_AGAIN_SECONDS = 7200.0
_MOVED_AGAIN_SECONDS = 300.0
_OBSERVE_AGAIN_SECONDS = 3600.0
_STEP_WHILE_FAILING = 0.05
_STEP_WHILE_PASSING = 0.1

Event = dg.AssetCheckEvaluation | dg.AssetObservation | dg.AssetMaterialization


class OutboxReport:
    """The report of a tick. `seen` is the report's part of the cursor that the last tick left."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        settings: OutboxSettings,
        resource: HarvesterResource,
        seen: Mapping[str, Any],
    ) -> None:
        self.kept: dict[str, Any] = dict(seen)
        """The report's part of the cursor for the next tick."""
        self._instance = instance
        self._settings = settings
        self._resource = resource
        self._now = time.time()
        is_outside = settings.daemon.mode == "external"
        self._topics = OutsideTopics(settings, seen.get("topics", {}), self._now) if is_outside else None

    def make(self, alive: Collection[str]) -> tuple[list[Event], str]:
        """Return the events of the tick, and a summary. `alive` are the ids of the runs that send heartbeats. If the
        outbox cannot be read, every check fails with the reason."""
        try:
            config = self._resource.config()
            with self._resource.connect() as connection:
                progress = self._topics.read(connection, config) if self._topics is not None else None
                state = self._read(connection, config, alive, progress)
                leaderless = self._now - self.kept.get("leaderless_since", self._now)
                verdicts = judged_state(state, self._settings, leaderless_seconds=leaderless)
                events: list[Event] = [*self._news(verdicts)]
                if self._is_to_observe(state, is_news=bool(events)):
                    events += self._observations(state, place_of(connection, OutboxTable.parse(config.outbox_table)))
        except HarvestError as error:
            failed = dict.fromkeys(STATE_CHECKS, unreadable(error))
            return [*self._news(failed)], f"the outbox cannot be read: {error.cause}"
        if self._topics is not None and progress is not None:
            events += self._topics.events(config, progress, state.leader)
            self.kept["topics"] = self._topics.state
        words = f"backlog {state.waiting}, the oldest {state.waiting.age_seconds:.1f} s; leader: {state.leader}"
        if isinstance(state.parked, ParkedSummary) and state.parked.parked:
            words += f"; parked: {state.parked.parked:,}"
        return events, words

    def _read(
        self,
        connection: psycopg.Connection[Any],
        config: HarvestConfig,
        alive: Collection[str],
        progress: DeliveryProgress | None,
    ) -> OutboxState:
        """Read the state; `progress` has the backlog if it was read already. The election is queried in the mode
        `external`, and if the runs have reported no leader of a shard for a minute: another process of the pool may
        lead."""
        mode = self._settings.daemon.mode
        is_run = mode == "run"
        known = leaders_by_runs(self._instance, self._settings, alive) if is_run else None
        is_reported = known is not None and known.keys() >= set(range(config.shards))
        unreported = self._seconds("unreported_since", is_over=is_reported)
        state = read_state(
            connection,
            config,
            known,
            waiting=progress.waiting if progress is not None else None,
            ask=mode == "external" or (is_run and unreported >= LEADERLESS_SECONDS),
        )
        self._seconds("leaderless_since", is_over=None not in state.leaders)
        if state.delivered != self.kept.setdefault("delivered", state.delivered):
            self.kept |= {"delivered": state.delivered, "delivered_at": self._now}
        return state

    def _seconds(self, name: str, *, is_over: bool) -> float:
        """Return the time since a condition began, which the cursor keeps; 0 if it is over."""
        if is_over:
            self.kept.pop(name, None)
        else:
            self.kept.setdefault(name, self._now)
        return self._now - float(self.kept.get(name, self._now))

    def _news(self, verdicts: Mapping[str, Verdict]) -> Iterator[dg.AssetCheckEvaluation]:
        """Return the evaluations that differ from Dagster's storage or are due again."""
        keys = {name: dg.AssetCheckKey(self._settings.outbox_key, name) for name in verdicts}
        found = self._instance.event_log_storage.get_latest_asset_check_execution_by_key([*keys.values()])
        for name, verdict in verdicts.items():
            evaluation = dg.AssetCheckEvaluation(
                asset_key=self._settings.outbox_key,
                check_name=name,
                passed=verdict.passed,
                severity=verdict.severity,
                metadata=verdict.metadata,
                description=verdict.description,
            )
            record = found.get(keys[name])
            # While a run evaluates the check, its latest record has no evaluation.
            before = record.evaluation if record is not None else None
            reported_at = record.create_timestamp if record is not None else 0.0
            if is_news(before, evaluation, seconds=self._now - reported_at):
                yield evaluation

    def _is_to_observe(self, state: OutboxState, *, is_news: bool) -> bool:
        parked = state.parked if isinstance(state.parked, ParkedSummary) else ParkedSummary()
        numbers = [state.delivered, state.waiting.records, parked.parked, parked.held, state.leader]
        before = self.kept.get("observed", {"at": 0.0, "numbers": None})
        is_due = is_news or is_observed_again(
            has_changed=numbers != before["numbers"], seconds=self._now - before["at"]
        )
        self.kept["observed"] = {"at": self._now, "numbers": numbers} if is_due else before
        return is_due

    def _observations(self, state: OutboxState, place: Mapping[str, Any]) -> Iterator[dg.AssetObservation]:
        """Return the observation of the outbox."""
        shown: dict[str, Any] = {
            "backlog_records": state.waiting.records,
            "backlog_age_seconds": round(state.waiting.age_seconds, 3),
            "leader": state.leader,
            **({"epoch": state.waiting.epoch} if state.waiting.epoch is not None else {}),
        }
        if isinstance(state.parked, ParkedSummary):
            shown |= {"parked_records": state.parked.parked, "held_records": state.parked.held}
        if since := [each.since for each in state.leaders if each is not None and each.since is not None]:
            shown["leads_since"] = dg.MetadataValue.timestamp(max(since))
        if "delivered_at" in self.kept:
            shown["last_delivered"] = dg.MetadataValue.timestamp(self.kept["delivered_at"])
        yield dg.AssetObservation(asset_key=self._settings.outbox_key, metadata={**shown, **place})


def is_news(before: object, now: dg.AssetCheckEvaluation, *, seconds: float) -> bool:
    """Return True if an evaluation has to be reported, `seconds` after the evaluation `before`, if there is any."""
    if not isinstance(before, dg.AssetCheckEvaluation):
        return True
    if seconds >= _SAME_AGAIN_SECONDS or before.passed != now.passed:
        return True
    if not now.passed and before.severity is not now.severity:
        return True
    if any(before.metadata.get(name) != now.metadata.get(name) for name in ("leader", "cause")):
        return True
    old, new, warn_at = (_number(each, name) for each, name in ((before, "value"), (now, "value"), (now, "warn_at")))
    moved = abs(new - old)
    if now.passed:
        return seconds >= _MOVED_AGAIN_SECONDS and moved >= max(1.0, _STEP_WHILE_PASSING * warn_at)
    return moved >= max(1.0, _STEP_WHILE_FAILING * max(old, new))


def is_observed_again(*, has_changed: bool, seconds: float) -> bool:
    """Return True if the numbers have to be observed again, `seconds` after the last observation."""
    return seconds >= (_MOVED_AGAIN_SECONDS if has_changed else _OBSERVE_AGAIN_SECONDS)


def _number(evaluation: dg.AssetCheckEvaluation, name: str) -> float:
    value: Any = evaluation.metadata.get(name)
    return float(value.value) if value is not None else 0.0
