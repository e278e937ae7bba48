"""Findings of the checker: anomalies by name, explained by the promise or not, with the events that show them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from infra.chaos.history.events import Event
from infra.chaos.history.lines import to_document

Anomaly = Literal[
    "lost-write",
    "unseen",
    "aborted-read",
    "precommitted-read",
    "torn-transaction",
    "inconsistent-offsets",
    "duplicate-adjacent",
    "duplicate-separated",
    "duplicate-cross-epoch",
    "nonmonotonic-send",
    "int-nonmonotonic-send",
    "int-send-skip",
    "poll-skip",
    "int-poll-skip",
    "nonmonotonic-poll",
    "int-nonmonotonic-poll",
    "dual-epoch-append",
    "purge-before-ack",
    "parked-read",
    "double-effect",
    "checkpoint-regression",
]
ANOMALIES: tuple[Anomaly, ...] = get_args(Anomaly)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyFinding:
    """One anomaly. `explained` is true if the promise allows the anomaly. `events` are the evidence, reduced to the
    affected records."""

    name: Anomaly
    explained: bool
    sentence: str
    events: tuple[Event, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the finding as values that `json.dumps` takes."""
        return {
            "name": self.name,
            "explained": self.explained,
            "sentence": self.sentence,
            "events": [to_document(event) for event in self.events],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryVerdict:
    """Counts of explained and of unexplained findings by anomaly, and the first findings of each anomaly."""

    events: int
    explained: Mapping[Anomaly, int]
    unexplained: Mapping[Anomaly, int]
    findings: tuple[AnomalyFinding, ...]
    records: int = 0
    """Number of records that the events are about. If it is 0, nothing was checked."""

    @property
    def ok(self) -> bool:
        """True if the promise allows every anomaly that was found."""
        return not self.unexplained

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as values that `json.dumps` takes."""
        return {
            "ok": self.ok,
            "events": self.events,
            "records": self.records,
            "explained": dict(self.explained),
            "unexplained": dict(self.unexplained),
            "findings": [finding.to_json() for finding in self.findings],
        }


class Findings:
    """Counts all findings, and stores for each anomaly the first `keep` explained and the first `keep` unexplained."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._kept: list[AnomalyFinding] = []
        self._explained: Counter[Anomaly] = Counter()
        self._unexplained: Counter[Anomaly] = Counter()

    def add(self, name: Anomaly, sentence: str, events: Iterable[Event], *, explained: bool = False) -> None:
        """Add a finding. `events` is iterated only if the finding is stored."""
        counts = self._explained if explained else self._unexplained
        counts[name] += 1
        if counts[name] <= self._keep:
            self._kept.append(AnomalyFinding(name=name, explained=explained, sentence=sentence, events=tuple(events)))

    def verdict(self, events: int, records: int) -> HistoryVerdict:
        """Return the verdict. `events` and `records` are total numbers; anomalies are in the order of `ANOMALIES`."""
        return HistoryVerdict(
            events=events,
            records=records,
            explained={name: self._explained[name] for name in ANOMALIES if self._explained[name]},
            unexplained={name: self._unexplained[name] for name in ANOMALIES if self._unexplained[name]},
            findings=tuple(sorted(self._kept, key=lambda finding: ANOMALIES.index(finding.name))),
        )
