"""The verdict on a reader: its polls compared with the committed records. Pure: no clock, no server."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Record = tuple[str, int]
"""A key and a number: each key's committed records are numbered 1, 2, 3 and so on in the order of their commits."""


@dataclass(frozen=True, slots=True)
class Poll:
    """One poll: when it began and ended, by one monotonic clock, and what it returned, in order."""

    began: float
    ended: float
    records: Sequence[Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Losses, repeats, disorder and waits of the committed records."""

    lost: int
    """Committed and never read."""
    reordered: int
    """Read, for the first time, after one of the same key that committed later."""
    repeated: int
    """Read again."""
    stalled_seconds: float
    """The longest that a record which was read in the end had waited since its commit."""
    median_wait_seconds: float
    """The same for the middle one."""
    empty_share: float
    """Of the polls that began while such a record waited, the part that returned nothing."""


def judge(committed: Mapping[Record, float], polls: Sequence[Poll]) -> Verdict:
    """Compare; `committed` says when each commit had returned."""
    read_at: dict[Record, float] = {}
    highest: dict[str, int] = {}
    reordered = repeated = 0
    for poll in polls:
        for record in poll.records:
            if record in read_at:
                repeated += 1
                continue
            read_at[record] = poll.ended
            key, number = record
            reordered += number < highest.get(key, 0)
            highest[key] = max(number, highest.get(key, 0))
    # A reader may see a record before its writer hears of the commit.
    waits = [max(0.0, at - committed[record]) for record, at in read_at.items()]
    return Verdict(
        lost=len(committed.keys() - read_at.keys()),
        reordered=reordered,
        repeated=repeated,
        stalled_seconds=max(waits, default=0.0),
        median_wait_seconds=median(waits) if waits else 0.0,
        empty_share=_empty_share(polls, [(committed[record], at) for record, at in read_at.items()]),
    )


def _empty_share(polls: Sequence[Poll], waits: Iterable[tuple[float, float]]) -> float:
    begins: list[float] = []
    ends: list[float] = []
    for began, ended in sorted(waits):
        if ends and began <= ends[-1]:
            ends[-1] = max(ends[-1], ended)
        else:
            begins.append(began)
            ends.append(ended)

    def something_waited(moment: float) -> bool:
        place = bisect_right(begins, moment) - 1
        return place >= 0 and moment < ends[place]

    asked = [poll for poll in polls if something_waited(poll.began)]
    return sum(not poll.records for poll in asked) / len(asked) if asked else 0.0
