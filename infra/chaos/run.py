"""One run: write, harvest, read and inject faults for a while; then heal, drain, read all of it once more, and judge.

The seed decides which faults are injected, in which order and for how long. Their effect depends on the machine.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from harvest_lib.audit.checker import FAILED_OVER, Anomaly, Promise, Verdict, check
from harvest_lib.audit.history.events import Event, FailoverLoss, Isolation, Park, RecreatedTopic, Term, Write
from harvest_lib.audit.history.events import Fault as FaultEvent
from harvest_lib.audit.history.reader import BadLine, read_history
from harvest_lib.audit.history.writer import HistoryWriter
from harvest_lib.clock import boot_seconds
from harvest_lib.errors import StackError
from infra.chaos.aftermath import Aftermath, Broken
from infra.chaos.faults import FAULTS
from infra.chaos.following import Following
from infra.chaos.reading import Reader
from infra.chaos.schedule import Schedule
from infra.chaos.system import PARTITIONS, TOPIC, Mode, System, running
from infra.chaos.writing import Writers, Writing, make_tables

_QUIET_SECONDS = (1.5, 4.0)
_TICK_SECONDS = 0.1
_DRAIN_SECONDS = 120.0
_RECOVER_SECONDS = 90.0
_KEYS = 300
_MOST_BEHIND = 6_000
"""Records that wait to be read, at most: a machine that cannot keep to the rate shall recover in time all the same."""
_KEPT_FINDINGS = 10_000
DUPLICATES: tuple[Anomaly, ...] = ("duplicate-adjacent", "duplicate-separated", "duplicate-cross-epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosPlan:
    """What to do. `rate` is in records per second."""

    seed: int
    seconds: float
    mode: Mode
    brokers: int = 3
    rate: float = 300.0
    threads: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """One fault as it was: the process that led, when it began by the boot clock, how long it lasted, and how long it
    took from its end until all was read that had been committed by then."""

    fault: str
    leader: str
    at: float
    seconds: float
    recovery_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run. `history` is the folder with its events; under fire it was for `fire_seconds`."""

    plan: ChaosPlan
    history: Path
    committed: int
    delivered: int
    seconds: float
    fire_seconds: float
    injected: Sequence[InjectedFault]
    verdict: Verdict
    broken: Sequence[Broken]


def run(plan: ChaosPlan, schedule: Schedule, folder: Path, parts: Path, say: Callable[[str], None]) -> Outcome:
    """Do it, in a folder that is empty; the history stays there. `schedule` has the faults; `say` is told of each step,
    in a line.

    Raises StackError when the system does not come up, or its servers do not come back after a fault.
    """
    began = time.monotonic()
    isolation: Isolation = "committed" if plan.mode.exactly_once else "uncommitted"
    history, locks_first = folder / "history", plan.mode.source == "transaction_id"
    with ExitStack() as ending:
        writing, reading, faults = (
            ending.enter_context(HistoryWriter(history / f"{name}.jsonl")) for name in ("writers", "readers", "faults")
        )
        prepare = [FAULTS[name].prepare for name in schedule.possible(plan.mode)]
        system = ending.enter_context(running(folder, parts, plan.mode, plan.brokers, prepare))
        say(f"{plan.brokers} brokers, Postgres and {len(system.members)} harvesters are up")
        make_tables(system.dsn, _KEYS)
        answered: set[str] = set()  # events whose commit was
        read = partial(Reader, system.kafka.bootstrap_servers, TOPIC, PARTITIONS, reading, isolation=isolation)
        reader = ending.enter_context(read(name="follower"))
        system.following = Following(reader=reader, answered=answered)
        writers = ending.enter_context(
            Writers(
                lambda: system.dsn,
                writing,
                TOPIC,
                keys=_KEYS,
                rate=plan.rate,
                threads=plan.threads,
                seed=plan.seed,
                answered=answered,
                is_behind=lambda: len(answered) > len(reader.seen) + _MOST_BEHIND,
                locks_first=locks_first,
            )
        )
        under_fire = UnderFire(
            plan=plan,
            schedule=schedule,
            system=system,
            history=faults,
            write=partial(Writing, writing, "slow-writer", TOPIC, answered, locks_first=locks_first),
            answered=answered,
            seen=reader.seen,
            say=say,
        )
        fire_began = time.monotonic()
        injected = under_fire.inject()
        fire_seconds = time.monotonic() - fire_began
        writers.stop()
        _drained(answered, reader.seen)
        last = read(name="last")
        last.read_all()
        broken = under_fire.broken or _broken("the end", system.end)
    committed, terms, verdict = judged(history, plan.mode)
    return Outcome(
        plan=plan,
        history=history,
        committed=committed,
        delivered=len(last.seen | reader.seen),
        seconds=time.monotonic() - began,
        fire_seconds=fire_seconds,
        injected=injected,
        verdict=verdict,
        broken=[*broken, *not_kept(injected, terms, verdict)],
    )


def judged(history: Path, mode: Mode) -> tuple[int, Sequence[Term], Verdict]:
    """Check the history in a folder against what the mode promises; return also how many records were committed, and
    neither lost by Postgres itself nor dropped, nor gone with a topic, and the terms that began."""
    promise = Promise(
        delivery="transactional" if mode.exactly_once else "at_least_once",
        barrier=mode.delivery == "barrier",
    )
    committed, terms = set[str](), list[Term]()

    def events() -> Iterator[Event]:
        for event in read_history(sorted(history.glob("*.jsonl")), on_bad=_unreadable):
            if isinstance(event, Write) and event.type == "ok":
                committed.update(record.event for record in event.records)
            elif isinstance(event, FailoverLoss | RecreatedTopic) or (isinstance(event, Park) and event.step == "drop"):
                committed.difference_update(event.events)
            elif isinstance(event, Term) and event.type == "invoke":
                terms.append(event)
            yield event

    verdict = check(events(), promise, keep=_KEPT_FINDINGS)
    return len(committed), terms, verdict


def not_kept(injected: Sequence[InjectedFault], terms: Sequence[Term], verdict: Verdict) -> list[Broken]:
    """Return the broken promises of faults that the checker does not cover."""
    copies = [each for each in verdict.findings if each.name in DUPLICATES and FAILED_OVER not in each.sentence]
    broken = []
    for each in injected:
        after = Aftermath(at=each.at, leader=each.leader, terms=terms, copies=copies)
        for check_one in FAULTS[each.fault].checks:
            if (sentence := check_one(after)) is not None:
                broken.append(Broken(fault=each.fault, sentence=sentence))
    return broken


def _broken(what: str, wait: Callable[[], None]) -> list[Broken]:
    """Wait for what was promised; return what was not kept."""
    try:
        wait()
    except StackError as error:
        return [Broken(fault=what, sentence=f"{what}: {error.cause}", evidence=error.evidence or "")]
    return []


def _unreadable(line: BadLine) -> None:
    if line.file.name.startswith("harvester-"):
        return  # one that is killed may leave half a line
    raise StackError("the history cannot be read", evidence=str(line), next_step="is the disk full?")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderFire:
    """A system under faults, while writers add to `answered` and readers to `seen`."""

    plan: ChaosPlan
    schedule: Schedule
    system: System
    history: HistoryWriter
    write: Callable[[], Writing]
    answered: set[str]
    seen: set[str]
    say: Callable[[str], None]
    broken: list[Broken] = field(default_factory=list)

    def inject(self) -> list[InjectedFault]:
        """Inject one fault after the other for as long as the plan says and the harvesters keep up."""
        draw = random.Random(self.plan.seed)  # noqa: S311 - no secret
        until = time.monotonic() + self.plan.seconds
        injected: list[InjectedFault] = []
        while not self.broken and time.monotonic() < until and (name := self.schedule.next(self.plan.mode)) is not None:
            injected.append(self._inject(name, draw))
            time.sleep(draw.uniform(*_QUIET_SECONDS))
        return injected

    def _inject(self, name: str, draw: random.Random) -> InjectedFault:
        leader = self.system.leader
        leads = leader.process_name if leader is not None else ""  # its place may have another process afterwards
        began, at = time.monotonic(), boot_seconds()
        self.history.append(FaultEvent(type="info", process="chaos", fault=name, step="begin"))
        with FAULTS[name].inject(self.system, draw, self.write):
            time.sleep(draw.uniform(*FAULTS[name].seconds))
        for event in self.system.happened:
            self.history.append(event)
            if isinstance(event, FailoverLoss | RecreatedTopic) or event.step == "drop":
                self.answered.difference_update(event.events)
        self.system.happened.clear()
        self.history.append(FaultEvent(type="info", process="chaos", fault=name, step="end"))
        ended = time.monotonic()
        self.broken.extend(_broken(name, partial(self._recover, ended + _RECOVER_SECONDS)))
        recovered = time.monotonic()
        self.broken.extend(_broken(name, self.system.await_members))
        found = InjectedFault(
            fault=name,
            leader=leads,
            at=at,
            seconds=round(ended - began, 1),
            recovery_seconds=round(recovered - ended, 1),
        )
        self.say(
            f"{name} for {found.seconds} s, caught up after {found.recovery_seconds} s; {len(self.answered)} committed"
        )
        return found

    def _recover(self, until: float) -> None:
        """Wait until all has been read that is committed now, and something more was committed. Raises StackError if
        that takes too long."""
        count, missing = len(self.answered), self.answered - self.seen
        while missing or len(self.answered) == count:  # writers go on, too
            if time.monotonic() > until:
                raise StackError(
                    f"it was undone, and harvesting did not go on within {_RECOVER_SECONDS:.0f} s",
                    evidence=f"of {count} records committed by then {len(missing)} were not read; "
                    f"{len(self.answered) - count} were committed since",
                    next_step="read the logs of the harvesters, beside the history",
                )
            time.sleep(_TICK_SECONDS)
            missing = missing - self.seen  # in place, all that was seen would be gone through


def _drained(answered: set[str], seen: set[str]) -> None:
    """Wait until everything whose commit was answered has been read; what never comes is for the checker to say."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    missing = answered - seen
    while missing and time.monotonic() < deadline:
        time.sleep(_TICK_SECONDS)
        missing = missing - seen
    time.sleep(_QUIET_SECONDS[0])  # what may come a second time
