"""Results of runs: as JSON, as a table for the terminal, and as the table of faults in the documentation."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from infra.chaos.checker import Anomaly, AnomalyFinding
from infra.chaos.faults import FAULTS
from infra.chaos.run import DUPLICATES, InjectedFault, Outcome

_SHOWN_FINDINGS = 20
_BEGINS, _ENDS = "<!-- table -->", "<!-- end of table -->"


def lost(outcome: Outcome) -> int:
    """Count the records whose commit was confirmed and that no reader saw."""
    return _count(outcome, "lost-write", "unseen")


def duplicates(outcome: Outcome) -> int:
    """Count duplicates, whether the promise allows them or not."""
    return _count(outcome, *DUPLICATES)


def unexplained(outcome: Outcome) -> int:
    """Count findings that the promise of the delivery does not allow, and broken promises of faults."""
    return sum(outcome.verdict.unexplained.values()) + len(outcome.broken)


def proved_nothing(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a sentence for each reason why a run proves nothing: no fault, no commit, no delivery, or no native
    hand-over although it was planned."""
    wanted: Mapping[str, Callable[[Outcome], object]] = {
        "no fault was injected": lambda each: each.injected,
        "no record was committed": lambda each: each.committed,
        "no record was delivered": lambda each: each.delivered,
        "no record was handed over natively": _went_as_planned,
    }
    return [f"{each.plan.mode}: {missing}" for each in outcomes for missing, found in wanted.items() if not found(each)]


def _went_as_planned(outcome: Outcome) -> bool:
    return bool(outcome.handed_over_natively) or outcome.plan.mode.hand_over != "native"


def document(outcomes: Sequence[Outcome], left_out: Mapping[str, str]) -> dict[str, Any]:
    """Return the sums, the faults that were not injected with the reasons, and each run, as values for `json.dumps`."""
    return {
        "committed": sum(each.committed for each in outcomes),
        "delivered": sum(each.delivered for each in outcomes),
        "handed_over_natively": sum(each.handed_over_natively for each in outcomes),
        "lost": sum(map(lost, outcomes)),
        "duplicates": sum(map(duplicates, outcomes)),
        "unexplained": sum(map(unexplained, outcomes)),
        "faults": sum(len(each.injected) for each in outcomes),
        "seconds": round(sum(each.seconds for each in outcomes), 1),
        "not_injected": dict(left_out),
        "proved_nothing": proved_nothing(outcomes),
        "runs": [_run(each) for each in outcomes],
    }


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return a table of the faults, for a terminal."""
    shown = Table("fault", "promise", "injected", "duplicates", "caught up after", box=None, pad_edge=False)
    for row in _rows(outcomes):
        shown.add_row(*row)
    return shown


def markdown(outcomes: Sequence[Outcome], left_out: Mapping[str, str]) -> str:
    """Return the table of faults in Markdown, with a sentence about the runs before it."""
    sums = document(outcomes, left_out)
    modes = ", ".join(dict.fromkeys(f"`{each.plan.mode.source}` + `{each.plan.mode.delivery}`" for each in outcomes))
    under_fire = {
        name: f"{sum(each.fire_seconds for each in some) / 60:.1f} minutes of faults"
        for name in ("native", "python")
        if (some := [each for each in outcomes if each.plan.mode.hand_over == name])
    }
    implementations = "; ".join(f"`HARVEST_IMPL={name}`, {minutes}" for name, minutes in under_fire.items())
    brokers = sorted({each.plan.brokers for each in outcomes})
    said = (
        f"{sums['committed']:,} records under {sums['faults']} faults in {sums['seconds'] / 60:.0f} minutes: "
        f"{sums['lost']} lost, {sums['duplicates']} duplicates, {sums['unexplained']} unexplained. {modes}; "
        f"{implementations}; {sums['handed_over_natively']:,} records handed over natively; "
        f"{' and '.join(map(str, brokers))} broker{'s' if brokers != [1] else ''}, "
        f"seed {', '.join(sorted({str(each.plan.seed) for each in outcomes}))}."
    )
    lines = [
        "| fault | promise | injected | duplicates | caught up after, median and longest |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {' | '.join(row)} |" for row in _rows(outcomes)]
    if left_out:
        lines += ["", f"Not injected: {'; '.join(f'`{fault}` ({why})' for fault, why in left_out.items())}."]
    return "\n".join([said, "", *lines, ""])


def put(outcomes: Sequence[Outcome], left_out: Mapping[str, str], file: Path) -> None:
    """Write the table of faults into a file, as `put_table` does."""
    put_table(markdown(outcomes, left_out), file)


def put_table(written: str, file: Path) -> None:
    """Replace the table between the marks of a file by `written`, or the whole file if it has no marks."""
    text = file.read_text() if file.exists() else ""
    before, begins, rest = text.partition(_BEGINS)
    _, ends, after = rest.partition(_ENDS)
    parts = (before, _BEGINS, "\n", written, _ENDS, after) if begins and ends else (written,)
    file.write_text("".join(parts))


def _rows(outcomes: Sequence[Outcome]) -> Iterable[tuple[str, ...]]:
    injected: dict[str, list[InjectedFault]] = defaultdict(list)
    again: Counter[str] = Counter()
    for outcome in outcomes:
        for each in outcome.injected:
            injected[each.fault].append(each)
        for finding in outcome.verdict.findings:
            if finding.name in DUPLICATES:
                again[_during(finding, outcome.injected)] += 1
    for name, fault in FAULTS.items():
        if found := injected[name]:
            seconds = [each.recovery_seconds for each in found]
            yield (
                name,
                fault.promise,
                str(len(found)),
                str(again[name]),
                f"{median(seconds):.1f} s, {max(seconds):.1f} s",
            )


def _during(finding: AnomalyFinding, injected: Sequence[InjectedFault]) -> str:
    """Return the last fault that began before the newest event of the finding; empty if there is none."""
    at = max(event.time for event in finding.events)
    return next((each.fault for each in reversed(injected) if each.at <= at), "")


def _run(outcome: Outcome) -> Mapping[str, Any]:
    plan, verdict = outcome.plan, outcome.verdict
    findings = [each.to_json() for each in outcome.broken]
    findings += [each.to_json() for each in verdict.findings if not each.explained]
    return {
        "seed": plan.seed,
        "source": plan.mode.source,
        "delivery": plan.mode.delivery,
        "hand_over": plan.mode.hand_over,
        "handed_over_natively": outcome.handed_over_natively,
        "brokers": plan.brokers,
        "committed": outcome.committed,
        "delivered": outcome.delivered,
        "anomalies": {"explained": dict(verdict.explained), "unexplained": dict(verdict.unexplained)},
        "findings": findings[:_SHOWN_FINDINGS],
        "injected": [asdict(each) for each in outcome.injected],
        "history": str(outcome.history),
        "seconds": round(outcome.seconds, 1),
    }


def _count(outcome: Outcome, *names: Anomaly) -> int:
    counts = (outcome.verdict.explained, outcome.verdict.unexplained)
    return sum(each.get(name, 0) for each in counts for name in names)
