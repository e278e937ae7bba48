"""The checkpoint of a subscription's shard, and its JSON form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Position = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxCheckpoint:
    """The progress of a subscription: the `number`-th checkpoint of its generation, and the source's position, None
    before the first. `delivered` counts the generation's records, `low_watermark` and `retention_hold` are for
    retention."""

    generation: int
    number: int = 0
    position: Position | None = None
    delivered: int = 0
    low_watermark: str = "1:1:"
    retention_hold: int | None = None
    kept_in: str = "postgres"
    """Place of the checkpoint that counts: `postgres`, or `kafka`, if this is its mirror."""
    intents: Sequence[Sequence[Any]] = ()
    """Acknowledgements that follow from it, as `harvest_lib.consume.Intent` spells them: to be written, or written."""
    origin: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Its author and outbox: the known fields of `ORIGIN`."""

    @property
    def witness(self) -> int:
        """Return how often the row was written in this generation, as far as the checkpoint knows."""
        found = self.origin.get("witness")
        return found if isinstance(found, int) else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "number": self.number,
            "position": self.position,
            "delivered": self.delivered,
            "kept_in": self.kept_in,
            **({"intents": self.intents} if self.intents else {}),
            **self.origin,
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "OutboxCheckpoint":
        """Read the mapping of `as_json`. Raises ValueError, with the reason, for anything else."""
        found = {name: value.get(name, default) for name, default in _DEFAULTS.items()}
        for name, kinds in _KINDS_OF.items():
            if not isinstance(found[name], kinds) or isinstance(found[name], bool):
                raise ValueError(f"its {name} is {str(found[name])[:60]!r}")  # noqa: TRY004 - callers expect ValueError for any fault
        return cls(**found, origin={name: value[name] for name in ORIGIN if name in value})


_DEFAULTS: Mapping[str, Any] = {
    "generation": None,
    "number": None,
    "position": None,
    "delivered": 0,
    "kept_in": None,
    "intents": (),
}
_KINDS_OF: Mapping[str, tuple[type, ...]] = {
    "generation": (int,),
    "number": (int,),
    "position": (dict, type(None)),
    "delivered": (int,),
    "kept_in": (str,),
    "intents": (list, tuple),
}


ORIGIN = (
    *("identity", "was", "subscription", "shard", "leader_id", "epoch", "leaders", "timeline", "kafka", "placed"),
    "witness",
)
"""The fields of a checkpoint's origin: `identity` of the outbox, and earlier identities that an operator confirmed
(`was`); `leaders` by epoch, since the last that saved; `timeline` of the server; `kafka`, the group and the topic it
was written under; `placed`, if an operator put it there and no leader has saved since; `witness`, the number of writes
of the subscription's row in this generation, so that Kafka's checkpoint reveals a row that went back with its
server."""
