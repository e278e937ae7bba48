"""A run that measures which alerts each fault fires: a Prometheus scrapes a pool under load, and a fault is injected.

The times in the rules are minutes, so the run uses a copy of the rules with shorter times. Nearly all times, and the
intervals of Prometheus, are divided by the same factor. Each fault has its own Prometheus, which begins without data.
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
"""Session timeout of the pool. A tenth of the default would be too short for a loaded machine."""
OTHER_FACTORS = dict.fromkeys(("HarvestNoLeader", "HarvestDown"), 10 / SESSION_SECONDS)
"""Alerts that wait for a failover, or for processes to start, are divided as the session timeout (10 s) is."""
_INTERVAL_SECONDS = 15.0 / FACTOR
"""15 s is the interval of the probes and examples in this repository; the default of Prometheus is a minute."""
ALLOWED_SECONDS = 10.0
"""An alert may begin and end this much late: two intervals, the session timeout, a second until the database is queried
again, and the delays of a loaded machine. Of these times only the intervals are divided by the factor."""
_EARLY_SECONDS = 2 * _INTERVAL_SECONDS
"""An alert may begin this much early, because a backlog may have an age before the fault begins."""
_READY_SECONDS = 60.0
_RATE = 60.0
"""Records per second that writers commit. Over a narrow network a leader delivers more, and no alert fires."""
_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredAlert:
    """An alert that a fault fired. `value` is the value of its expression at that time, `after_seconds` the time since
    the fault was injected. The alert ended `ended_seconds` after the pool had recovered from the fault."""

    alert: str
    labels: Mapping[str, str]
    value: float | None
    after_seconds: float
    ended_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One injected fault: the time to inject it, its duration, and the alerts that it fired. `left` names the alerts
    that did not end in time."""

    case: Case
    injecting_seconds: float
    lasted_seconds: float
    fired: Sequence[FiredAlert]
    left: Sequence[str] = ()

    def wrong(self, rules: Mapping[str, ScaledRule]) -> list[str]:
        """Return a sentence for each missing, unexpected, early or late alert, and for each alert that did not end."""
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
    """Return the content of the rules file with divided times, and its alerts by name."""
    file, found = scaled_rules.scaled(yaml.safe_load(scaled_rules.FILE.read_text()), factor, OTHER_FACTORS)
    return file, {each.name: each for each in found}


def run(
    cases: Sequence[Case], *, brokers: int, folder: Path, parts: Path, say: Callable[[str], None]
) -> Iterator[Episode]:
    """Inject the faults of the cases, grouped by mode, and yield an episode for each. `folder` must be empty.

    Raises StackError if the system does not start, or does not recover after a fault.
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
    """Return the addresses, as host:port, at which Prometheus scrapes the harvesters."""
    return [f"{each.scraped.host}:{each.scraped.port}" for each in load.system.members if each.scraped is not None]


def await_scraped(prometheus: Prometheus, count: int) -> None:
    """Wait until `count` harvesters reach Postgres, one of them leads, and no alert fires. Raises StackError."""
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
            if each.until >= began  # alerts that ended before belong to the wait for a healthy pool
        ]
    return Episode(case=case, injecting_seconds=injected - began, lasted_seconds=lasted, fired=fired, left=left)


def _left(prometheus: Prometheus, window_seconds: float) -> list[str]:
    """Wait until no alert fires or is pending. Return the names of those that still do when all should have ended."""
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
    """Return the value of a rule's expression when its alert began to fire, None if no series matches the alert."""
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
