"""One run: write, harvest, read and inject faults for some time; then drain, read the topic again, check the history.

The seed determines which faults are injected, in which order and for how long. Their effect depends on the machine.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import StackError
from infra.chaos.aftermath import Aftermath, Broken
from infra.chaos.checker import FAILED_OVER, Anomaly, HistoryVerdict, Promise, check
from infra.chaos.faults import FAULTS
from infra.chaos.history.events import Event, FailoverLoss, FaultEvent, Park, RecreatedTopic, TermEvent, Write
from infra.chaos.history.reader import BadLine, read_history
from infra.chaos.recording_native import count_handed_over
from infra.chaos.schedule import Schedule
from infra.chaos.system import SystemMode
from infra.chaos.under_load import UnderLoad, under_load
from infra.waiting import until

_QUIET_SECONDS = (1.5, 4.0)
_DRAIN_SECONDS = 120.0
_KEPT_FINDINGS = 10_000
DUPLICATES: tuple[Anomaly, ...] = ("duplicate-adjacent", "duplicate-separated", "duplicate-cross-epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosPlan:
    """Plan of a run. `rate` is in records per second."""

    seed: int
    seconds: float
    mode: SystemMode
    brokers: int = 3
    rate: float = 300.0
    threads: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """One injected fault. It began `at` (boot clock) while `leader` led, and lasted `seconds`. After its end it took
    `recovery_seconds` until all records that had been committed by then were read."""

    fault: str
    leader: str
    at: float
    seconds: float
    recovery_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a run. `history` is the folder with its events. Faults were injected for `fire_seconds`, pauses
    included. `handed_over_natively` counts a record each time it is sent."""

    plan: ChaosPlan
    history: Path
    committed: int
    delivered: int
    handed_over_natively: int
    seconds: float
    fire_seconds: float
    injected: Sequence[InjectedFault]
    verdict: HistoryVerdict
    broken: Sequence[Broken]


def run(plan: ChaosPlan, schedule: Schedule, folder: Path, parts: Path, say: Callable[[str], None]) -> Outcome:
    """Run the plan in an empty folder; the history stays there. `schedule` chooses the faults; `say` receives a line
    for each step.

    Raises StackError if the system does not start, or its servers do not recover after a fault.
    """
    began, history = time.monotonic(), folder / "history"
    prepare = [FAULTS[name].prepare for name in schedule.possible(plan.mode)]
    with under_load(
        folder,
        parts,
        plan.mode,
        brokers=plan.brokers,
        rate=plan.rate,
        threads=plan.threads,
        seed=plan.seed,
        prepare=prepare,
    ) as load:
        say(f"{plan.brokers} brokers, Postgres and {len(load.system.members)} harvesters are up")
        under_fire = UnderFire(plan=plan, schedule=schedule, load=load, say=say)
        fire_began = time.monotonic()
        injected = under_fire.inject()
        fire_seconds = time.monotonic() - fire_began
        load.writers.stop()
        seen = load.follower.seen
        _drained(load.answered, seen)
        last = load.read("last")
        last.read_all()
        broken = under_fire.broken or _broken("the end", load.system.end)
    committed, terms, verdict = judged(history, plan.mode)
    return Outcome(
        plan=plan,
        history=history,
        committed=committed,
        delivered=len(last.seen | seen),
        handed_over_natively=count_handed_over(history),
        seconds=time.monotonic() - began,
        fire_seconds=fire_seconds,
        injected=injected,
        verdict=verdict,
        broken=[*broken, *not_kept(injected, terms, verdict)],
    )


def judged(history: Path, mode: SystemMode) -> tuple[int, Sequence[TermEvent], HistoryVerdict]:
    """Check the history in a folder against the mode's promise. Return the number of committed records, the terms that
    began, and the verdict. Records that Postgres or a deleted topic lost, or an operator dropped, are not counted."""
    promise = Promise(
        delivery="transactional" if mode.exactly_once else "at_least_once",
        barrier=mode.delivery == "barrier",
    )
    committed, terms = set[str](), list[TermEvent]()

    def events() -> Iterator[Event]:
        for event in read_history(sorted(history.glob("*.jsonl")), on_bad=_unreadable):
            if isinstance(event, Write) and event.type == "ok":
                committed.update(record.event for record in event.records)
            elif isinstance(event, FailoverLoss | RecreatedTopic) or (isinstance(event, Park) and event.step == "drop"):
                committed.difference_update(event.events)
            elif isinstance(event, TermEvent) and event.type == "invoke":
                terms.append(event)
            yield event

    verdict = check(events(), promise, keep=_KEPT_FINDINGS)
    return len(committed), terms, verdict


def not_kept(injected: Sequence[InjectedFault], terms: Sequence[TermEvent], verdict: HistoryVerdict) -> list[Broken]:
    """Return the broken promises of faults, except those that the checker of histories covers."""
    copies = [each for each in verdict.findings if each.name in DUPLICATES and FAILED_OVER not in each.sentence]
    broken = []
    for each in injected:
        after = Aftermath(at=each.at, leader=each.leader, terms=terms, copies=copies)
        for check_one in FAULTS[each.fault].checks:
            if (sentence := check_one(after)) is not None:
                broken.append(Broken(fault=each.fault, sentence=sentence))
    return broken


def _broken(what: str, wait: Callable[[], None]) -> list[Broken]:
    """Call `wait`, and return a broken promise if it raises StackError."""
    try:
        wait()
    except StackError as error:
        return [Broken(fault=what, sentence=f"{what}: {error.cause}", evidence=error.evidence or "")]
    return []


def _unreadable(line: BadLine) -> None:
    if line.file.name.startswith("harvester-"):
        return  # a killed harvester may leave an incomplete line
    raise StackError("the history cannot be read", evidence=str(line), next_step="is the disk full?")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderFire:
    """Injects faults into a system under load. `broken` receives the promises that were not kept."""

    plan: ChaosPlan
    schedule: Schedule
    load: UnderLoad
    say: Callable[[str], None]
    broken: list[Broken] = field(default_factory=list)

    def inject(self) -> list[InjectedFault]:
        """Inject faults one at a time until the plan's time is over, a promise is broken, or no fault is left."""
        draw = random.Random(self.plan.seed)  # noqa: S311 - no secret
        deadline = time.monotonic() + self.plan.seconds
        injected: list[InjectedFault] = []
        while (
            not self.broken and time.monotonic() < deadline and (name := self.schedule.next(self.plan.mode)) is not None
        ):
            injected.append(self._inject(name, draw))
            time.sleep(draw.uniform(*_QUIET_SECONDS))
        return injected

    def _inject(self, name: str, draw: random.Random) -> InjectedFault:
        load, system = self.load, self.load.system
        leader = system.leader
        leads = leader.process_name if leader is not None else ""  # the member may have another process afterwards
        began, at = time.monotonic(), boot_seconds()
        load.faults.append(FaultEvent(type="info", process="chaos", fault=name, step="begin"))
        with FAULTS[name].inject(system, draw, load.write):
            time.sleep(draw.uniform(*FAULTS[name].seconds))
        load.note_what_happened()
        load.faults.append(FaultEvent(type="info", process="chaos", fault=name, step="end"))
        ended = time.monotonic()
        self.broken.extend(_broken(name, load.recover))
        recovered = time.monotonic()
        self.broken.extend(_broken(name, system.await_members))
        found = InjectedFault(
            fault=name,
            leader=leads,
            at=at,
            seconds=round(ended - began, 1),
            recovery_seconds=round(recovered - ended, 1),
        )
        self.say(
            f"{name} for {found.seconds} s, caught up after {found.recovery_seconds} s; {len(load.answered)} committed"
        )
        return found


def _drained(answered: set[str], seen: set[str]) -> None:
    """Wait until all records whose commit was confirmed have been read. The checker reports missing records."""
    due = answered - seen
    with suppress(StackError):
        until(lambda: due <= seen, _DRAIN_SECONDS, "not all was read", next_step="read what the checker reports")
    time.sleep(_QUIET_SECONDS[0])  # duplicates may still arrive
