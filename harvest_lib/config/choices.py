"""Resolves `source`, `delivery` and `leadership` where they are `auto`, by the layout of the outbox table. No I/O.

| table | source | delivery | leadership |
| --- | --- | --- | --- |
| native, or mapped by `columns` | `snapshot` | `transactional` | `postgres` |
| goharvest's | `mark` | `barrier` | `neli` |

Promises
- All three settings are chosen together, from the same state of the table, so that they fit each other.
- A setting that is not `auto` is never changed, and the other choices depend on it. With `source: mark`, delivery is
  `barrier` for every table. With a delivery that does not fence a former leader, leadership is `neli`.
- With several shards, leadership is `neli`: under `postgres` a single process leads all shards.
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
"""Deliveries that fence a former leader, so that readers see no record twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingMode:
    """Effects of a source and a delivery on the tables."""

    marks: bool
    """True: records are marked, and deleted after delivery. False: the table is only read."""
    keeps_checkpoints: bool
    """True: each batch ends with a checkpoint in the table of subscriptions. False: only marks and deletions persist
    progress."""
    reads_segments: bool
    """True: the native table is read in the order of its transaction ids, and its segments are maintained."""
    parks_rows: bool
    """True: a record that can never be sent is moved to the table of parked records. False: the record stays in the
    outbox, and at most its id is added to the table of parked ids."""

    @classmethod
    def of(
        cls, source: Source | Auto, delivery: Delivery | Auto, *, is_mapped: bool = False, stops: bool = False
    ) -> "ReadingMode":
        """Return the mode of a configuration. `is_mapped`: `columns` is set. `stops`: `parking` is `stop`. Raises
        ValueError if `source` is `auto` and depends on the layout of the table."""
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
    """The chosen source, delivery and leadership, each with the reason for the choice."""

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
    """Return the source, delivery and leadership for a table. `table` may be None (unknown) if `source` is not `auto`.
    `marks`: the program that embeds the harvester has replaced the source by its own code, which marks records."""
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
        return "neli", "rows marked by a former leader are not fenced"
    if shards > 1:
        return "neli", "several processes can share the shards, but a lock in Postgres covers all of them"
    if delivery in FENCED:
        return "postgres", f"{delivery} delivery fences a former leader, so its successor does not wait"
    return "neli", f"{delivery} delivery does not fence a former leader"
