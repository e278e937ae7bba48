"""Alerts that each fault fires, found out by a run: a Prometheus scrapes a pool that is used, and a fault is injected.

Rules use minutes, so the run has a copy of them with all times divided by the same factor, and so are the intervals
of Prometheus and the session timeout of the pool. Each fault has a Prometheus of its own, without data from
before.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from harvest_lib.errors import StackError
from infra.chaos.expected_alerts import Case
from infra.chaos.faults import FAULTS
from infra.chaos.prometheus import Firing, Prometheus
from infra.chaos.system import SystemMode
from infra.chaos.under_load import UnderLoad, under_load
from infra.monitoring import scaled_rules
from infra.monitoring.scaled_rules import ScaledRule
from infra.waiting import until

FACTOR = 10.0
SESSION_SECONDS = 3.0
"""A tenth of the default would be less than a loaded machine keeps to."""
OTHER_FACTORS = dict.fromkeys(("HarvestNoLeader", "HarvestDown"), 10 / SESSION_SECONDS)
"""Alerts that wait for a failover, or for processes to start, are divided by as much as the session timeout (10 s)."""
_INTERVAL_SECONDS = 15.0 / FACTOR
"""Prometheus' own default is a minute; the probes and examples here use 15 s."""
ALLOWED_SECONDS = 10.0
"""An alert is this late at most, and lasts this much longer at most: two intervals, the session timeout, a second until
the database is queried again, and the delays of a loaded machine. Only the intervals are divided."""
_EARLY_SECONDS = 2 * _INTERVAL_SECONDS
"""A backlog may have an age before the fault."""
_READY_SECONDS = 60.0
_RATE = 60.0
"""Less than a leader delivers over a narrow network: a slow network is no reason for an alert."""
_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredAlert:
    """An alert that a fault has fired: its labels, its value then, the time from the fault's injection to the alert,
    and the time from the fault's end and the pool's recovery to the alert's end."""

    alert: str
    labels: Mapping[str, str]
    value: float | None
    after_seconds: float
    ended_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Alerts that a fault has fired, the time to inject it, its duration, and alerts that still fired at the end."""

    case: Case
    injecting_seconds: float
    lasted_seconds: float
    fired: Sequence[FiredAlert]
    left: Sequence[str] = ()

    def wrong(self, rules: Mapping[str, ScaledRule]) -> list[str]:
        """Return a sentence for each alert more or less than there should be, and for each that is early or late."""
        case, names = self.case, {each.alert for each in self.fired}
        sentences = [f"{case}: {name} did not fire" for name in sorted(case.alerts - names)]
        for each in self.fired:
            said, rule = (
                f"{case}: {each.alert} {dict(each.labels)} with the value {each.value}",
                rules[each.alert],
            )
            if each.alert not in case.alerts:
                sentences.append(f"{said} should not have fired, and did after {each.after_seconds:.1f} s")
                continue
            if each.after_seconds > rule.due_seconds + ALLOWED_SECONDS:
                sentences.append(f"{said} fired after {each.after_seconds:.1f} s, not {rule.due_seconds:.1f} s")
            if each.after_seconds + self.injecting_seconds < rule.due_seconds - _EARLY_SECONDS:
                sentences.append(f"{said} fired after {each.after_seconds:.1f} s, before {rule.due_seconds:.1f} s")
            if each.ended_seconds > rule.window_seconds + ALLOWED_SECONDS:
                sentences.append(f"{said} went on for {each.ended_seconds:.1f} s after it was over")
        return [*sentences, *(f"{case}: {name} did not end" for name in self.left)]


def scaled_rules_of_run(factor: float = FACTOR) -> tuple[Mapping[str, object], Mapping[str, ScaledRule]]:
    """Return the file of rules with its times divided, and its alerts by name."""
    file, found = scaled_rules.scaled(yaml.safe_load(scaled_rules.FILE.read_text()), factor, OTHER_FACTORS)
    return file, {each.name: each for each in found}


def run(
    cases: Sequence[Case], *, brokers: int, folder: Path, parts: Path, say: Callable[[str], None]
) -> Iterator[Episode]:
    """Inject the faults of the cases in order, and yield the episode of each. The folder is empty.

    Raises StackError when the system does not come up, or does not come back after a fault.
    """
    for number, (mode, of_mode) in enumerate(_by_mode(cases).items()):
        with under_load(
            folder / str(number),
            parts,
            mode,
            brokers=brokers,
            rate=_RATE,
            threads=_THREADS,
            seed=0,
            prepare=[FAULTS[each.fault].prepare for each in of_mode],
            session_seconds=SESSION_SECONDS,
            listens=True,
        ) as load:
            say(f"{mode}: {brokers} brokers, Postgres and {len(load.system.members)} harvesters are up")
            for place, case in enumerate(of_mode):
                episode = _episode(case, load, folder / str(number) / f"prometheus-{place}")
                say(f"{case} for {episode.lasted_seconds:.1f} s: {_said(episode)}")
                yield episode


def targets_of(load: UnderLoad) -> list[str]:
    """Return where Prometheus scrapes the harvesters."""
    return [f"{each.scraped.host}:{each.scraped.port}" for each in load.system.members if each.scraped is not None]


def await_scraped(prometheus: Prometheus, count: int) -> None:
    """Wait until `count` harvesters answer, and nothing fires. Raises StackError."""
    until(
        lambda: (
            prometheus.query("count(harvest_postgres_up == 1) and max(harvest_leader) == 1") == [({}, count)]
            and not prometheus.alerts()
        ),
        _READY_SECONDS,
        "the pool is not well before the fault",
        evidence=lambda: str(prometheus.alerts()),
        next_step="read the logs of the harvesters, beside the history",
    )


def _episode(case: Case, load: UnderLoad, folder: Path) -> Episode:
    system, draw = load.system, random.Random(case.seed)  # noqa: S311 - no secret
    file, rules = scaled_rules_of_run()
    lasts = case.minutes * 60 / FACTOR
    with Prometheus(folder, file, targets_of(load), interval_seconds=_INTERVAL_SECONDS) as prometheus:
        await_scraped(prometheus, len(system.members))
        began = time.time()
        with FAULTS[case.fault].inject(system, draw, load.write):
            injected = time.time()
            time.sleep(lasts)
        lasted = time.time() - injected
        load.note_what_happened()
        load.recover()
        recovered = time.time()
        system.await_members()
        left = _left(prometheus, max(rules[name].window_seconds for name in case.alerts) if case.alerts else 0.0)
        fired = [
            FiredAlert(
                alert=each.alert,
                labels={name: value for name, value in each.labels.items() if name not in {"severity", "job"}},
                value=_value(prometheus, rules[each.alert], each),
                after_seconds=each.since - injected,
                ended_seconds=max(0.0, each.until + _INTERVAL_SECONDS - recovered),
            )
            for each in prometheus.fired()
            if each.until >= began  # alerts during the wait for a healthy pool are not of the fault
        ]
    return Episode(case=case, injecting_seconds=injected - began, lasted_seconds=lasted, fired=fired, left=left)


def _left(prometheus: Prometheus, window_seconds: float) -> list[str]:
    """Wait until no alert fires or is about to; return the alerts that still do when they should have ended."""
    quiet: list[float] = []

    def is_over() -> bool:
        if prometheus.alerts():
            quiet.clear()
            return False
        quiet.append(time.monotonic())
        return quiet[-1] - quiet[0] >= 2 * _INTERVAL_SECONDS

    try:
        until(is_over, window_seconds + 3 * ALLOWED_SECONDS, "alerts go on", next_step="look at them")
    except StackError:
        return sorted({each["labels"]["alertname"] for each in prometheus.alerts()})
    return []


def _value(prometheus: Prometheus, rule: ScaledRule, firing: Firing) -> float | None:
    """Return the value of a rule's expression when its alert began to fire."""
    for labels, value in prometheus.query(rule.expression, at=firing.since):
        if labels.items() <= firing.labels.items():
            return value
    return None


def _by_mode(cases: Sequence[Case]) -> dict[SystemMode, list[Case]]:
    found: dict[SystemMode, list[Case]] = {}
    for case in cases:
        found.setdefault(case.mode(), []).append(case)
    return found


def _said(episode: Episode) -> str:
    return ", ".join(f"{each.alert} after {each.after_seconds:.1f} s" for each in episode.fired) or "no alert"
