"""The sensor that reports problems of an outbox, each when it begins and when it ends.

It reports failed runs and jobs that run again (`alerted_runs`), failed checks (`alerted_checks`) and a daemon that is
missing (`alerted_daemon`). A hook would not do: it runs inside the run, so nothing calls it after the run's process was
killed. Dagster's run-status sensor would not do either: it cannot skip a run and report another in the same tick, and
it writes an event to every run that it evaluates. So this is a plain sensor with its own cursor.

Each alert is reported once to each destination. If a destination raises, the next ticks call it again with the same
alert, up to three times in all. Later alerts wait until then. A tick that has reported for 20 seconds leaves further
alerts to the next tick, because Dagster ends a tick after a minute and loses its cursor. If a tick is killed, the next
tick repeats at most the alerts of the killed tick. A tick makes a constant number of queries, and a few queries for
each failed or restarted run. It reads at most 50 events of runs.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import dagster as dg

from dagster_harvest.alert import Alert, Tell
from dagster_harvest.alert_destinations import destinations
from dagster_harvest.alerted_checks import AlertedChecks
from dagster_harvest.alerted_daemon import daemon_changes
from dagster_harvest.alerted_runs import AlertedRuns
from dagster_harvest.settings import OutboxSettings
from harvest_lib.errors import HarvestError

_MOST_TRIES = 3
_LONGEST_SECONDS = 20.0


def alert_sensor(settings: OutboxSettings, tell: Tell | None = None) -> dg.SensorDefinition:
    """Return the sensor. It is on by default. `tell` replaces the function `alerts.tell` of the settings. Raises
    ConfigError if the settings name a function that does not exist."""
    tells = destinations(settings.alerts, tell)

    @dg.sensor(
        name=f"{settings.name}_alerts",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=10,
        description=f"Reports failed runs, failed checks and a missing daemon, and when they are good again. "
        f"Destinations: {', '.join(tells)}.",
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        origin = context.code_location_origin
        return _Tick(context, settings, origin.location_name if origin is not None else "in-process").result(tells)

    return alerts


class _Tick:
    """One tick of the sensor. The cursor holds the id of the last handled event of a run, the reported problems, the
    time at which the sensor began, and the alert that a destination did not accept, with the number of tries."""

    def __init__(self, context: dg.SensorEvaluationContext, settings: OutboxSettings, location: str) -> None:
        self._context = context
        self._settings = settings
        self._location = location
        self._runs = AlertedRuns(context.instance, settings, location)
        known = json.loads(context.cursor) if context.cursor else None
        # A user may set a cursor of another form. The state then begins anew, because each tick would fail otherwise.
        self._state: dict[str, Any] = (
            known
            if isinstance(known, dict) and "told" in known
            else {"event": self._runs.newest(), "told": {}, "since": time.time(), "tried": None}
        )

    def result(self, tells: Mapping[str, Tell]) -> dg.SensorResult:
        said: list[str] = []
        began = time.monotonic()
        for alert, handled in self._found():
            if alert is None:
                handled()
                continue
            if time.monotonic() - began >= _LONGEST_SECONDS:
                said.append("the next tick reports more")
                break
            problem = self._report(alert, tells)
            said.append(problem or alert.text)
            if self._state["tried"] is None:
                handled()
            if problem:
                break
        words = "; ".join(said) or "no problem began or ended"
        return dg.SensorResult(skip_reason=words, cursor=json.dumps(self._state))

    def _found(self) -> Iterator[tuple[Alert | None, Callable[[], None]]]:
        """Return each alert with the function that records in the cursor that it was handled. States come before
        events of runs, because their number is limited."""
        instance, told = self._context.instance, self._state["told"]
        for alert, levels in [
            *AlertedChecks(instance, self._settings).changes(told),
            *daemon_changes(instance, self._settings, self._location, told, since=self._state["since"]),
        ]:
            yield alert, partial(told.update, levels)
        for event, alert_of_run in self._runs.after(self._state["event"]):
            yield alert_of_run, partial(self._state.update, event=event)

    def _report(self, alert: Alert, tells: Mapping[str, Tell]) -> str:
        """Call each destination that has not accepted the alert before. Return the problem, empty without a problem. If
        the alert has to wait for the next tick, the cursor has the alert as `tried`."""
        # Numbers in the text of a state change from tick to tick, so the text does not identify an alert.
        name = [alert.kind, alert.run_id, *alert.checks]
        tried = self._state["tried"] or {}
        tried = tried if tried.get("alert") == name else {"alert": name, "tries": 0, "accepted": []}
        self._state["tried"], problem = None, ""
        for destination in [each for each in tells if each not in tried["accepted"]]:
            try:
                tells[destination](alert)
            except Exception as error:  # noqa: BLE001 - a function of the user's: its error must not end other alerts
                # The text of another error may hold the address of a pager.
                cause = error.cause if isinstance(error, HarvestError) else type(error).__name__
                problem = f"{destination} did not report the alert ({cause}): {alert.text}"
                self._context.log.error(problem)  # noqa: TRY400 - as above
                if tried["tries"] + 1 < _MOST_TRIES:
                    self._state["tried"] = {**tried, "tries": tried["tries"] + 1}
            else:
                tried["accepted"].append(destination)
        if not problem:
            self._context.log.info(str(alert))
        return problem
