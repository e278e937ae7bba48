"""The way in which a configuration reads, and its three `auto`, which the layout of the outbox table decides. Pure.

| table | source | delivery | leadership |
| --- | --- | --- | --- |
| native, or mapped by `columns` | `snapshot` | `transactional` | `postgres` |
| goharvest's | `mark` | `barrier` | `neli` |

Promises
- All three are chosen together, from one look at the table, so that they fit each other.
- Named settings of a configuration are kept, and the chosen ones follow from them: `source: mark` is delivered by
  `barrier`, and a delivery that does not fence a former leader elects by `neli`, whatever the table.
- With more than one shard the election is `neli`: under `postgres` one process leads them all.
"""

from dataclasses import dataclass
from typing import Literal

Table = Literal["goharvest", "native", "mapped"]
Source = Literal["mark", "snapshot", "transaction_id"]
Delivery = Literal["barrier", "pipelined", "transactional", "sequenced"]
Leadership = Literal["neli", "postgres", "solo"]
Auto = Literal["auto"]

NAMED = "the configuration names it"
_OF_TABLE = {
    "goharvest": "the table has goharvest's layout",
    "native": "the table is native",
    "mapped": "`columns` maps a table that is only read",
}
FENCED: frozenset[Delivery] = frozenset({"transactional", "sequenced"})
"""Deliveries of which a former leader is fenced, and no record repeats for readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingMode:
    """Effects of a source and a delivery on the tables."""

    marks: bool
    """Records are marked, and deleted once they are delivered; else the table is only read."""
    keeps_checkpoints: bool
    """A checkpoint in the table of subscriptions follows each batch; else marks and deletions are all that is kept."""
    reads_segments: bool
    """The native table is read by its transaction ids, and its segments are maintained."""
    parks_rows: bool
    """A record that can never be sent is moved to the table of parked records; else its id is listed, if at all."""

    @classmethod
    def of(
        cls, source: Source | Auto, delivery: Delivery | Auto, *, is_mapped: bool = False, stops: bool = False
    ) -> "ReadingMode":
        """Return the mode of settings. `is_mapped` if there are `columns`, `stops` if `parking` is `stop`. Raises
        ValueError while `auto` leaves the source to the table."""
        used, _ = _source("mapped" if is_mapped else None, source, marks=False)
        marks = used == "mark"
        return cls(
            marks=marks,
            keeps_checkpoints=not marks or delivery in FENCED,
            reads_segments=not marks and not is_mapped,
            parks_rows=marks and not stops,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The choice for each setting, and its reason."""

    source: Source
    source_reason: str
    delivery: Delivery
    delivery_reason: str
    leadership: Leadership
    leadership_reason: str

    def __str__(self) -> str:
        return (
            f"source {self.source} ({self.source_reason}), delivery {self.delivery} ({self.delivery_reason}), "
            f"leadership {self.leadership} ({self.leadership_reason})"
        )


def choose(
    table: Table | None,
    *,
    source: Source | Auto = "auto",
    delivery: Delivery | Auto = "auto",
    leadership: Leadership | Auto = "auto",
    shards: int = 1,
    marks: bool = False,
) -> Choices:
    """Return the choices of a configuration on a table. That may be unknown, None, where the source is named. With
    `marks` the program that embeds the harvester brings parts that mark."""
    used, why = _source(table, source, marks=marks)
    is_marked = ReadingMode.of(used, delivery).marks
    by, by_why = _delivery(delivery, marks=is_marked)
    elects, elects_why = _leadership(by, leadership, marks=is_marked, shards=shards)
    return Choices(
        source=used,
        source_reason=why,
        delivery=by,
        delivery_reason=by_why,
        leadership=elects,
        leadership_reason=elects_why,
    )


def _source(table: Table | None, source: Source | Auto, *, marks: bool) -> tuple[Source, str]:
    if source != "auto":
        return source, NAMED
    if marks:
        return "mark", "the parts that the program brings mark"
    if table is None:
        raise ValueError("of `source: auto` the table decides")
    return ("mark" if table == "goharvest" else "snapshot"), _OF_TABLE[table]


def _delivery(delivery: Delivery | Auto, *, marks: bool) -> tuple[Delivery, str]:
    if delivery != "auto":
        return delivery, NAMED
    if marks:
        return "barrier", "marked records are purged once they are acknowledged"
    return "transactional", "the table is only read: the position after a batch goes into its transaction"


def _leadership(
    delivery: Delivery, leadership: Leadership | Auto, *, marks: bool, shards: int
) -> tuple[Leadership, str]:
    if leadership != "auto":
        return leadership, NAMED
    if marks:
        return "neli", "what a former leader has marked is not fenced"
    if shards > 1:
        return "neli", "several processes can share the shards, where the lock in Postgres is one for all"
    if delivery in FENCED:
        return "postgres", f"{delivery} delivery fences a former leader, so nobody waits for it"
    return "neli", f"{delivery} delivery does not fence a former leader"
