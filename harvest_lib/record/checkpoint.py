"""The checkpoint of a subscription's shard, and its JSON form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Position = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxCheckpoint:
    """The progress of a subscription's shard. `number` counts the checkpoints of its `generation`. `position` is the
    source's position, None before the first record. `delivered` counts the delivered records of the generation.
    `low_watermark` and `retention_hold` are used by retention."""

    generation: int
    number: int = 0
    position: Position | None = None
    delivered: int = 0
    low_watermark: str = "1:1:"
    retention_hold: int | None = None
    kept_in: str = "postgres"
    """Store of the authoritative checkpoint: `postgres`, or `kafka`. With `kafka`, a checkpoint in Postgres mirrors the
    checkpoint in Kafka."""
    intents: Sequence[Sequence[Any]] = ()
    """Acknowledgements that this checkpoint implies, in the form of `harvest_lib.consume.Intent`. They may be written
    already, or not yet."""
    origin: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The checkpoint's author and outbox: those fields of `ORIGIN` that are known."""

    @property
    def witness(self) -> int:
        """Return how often the subscription's row was written in this generation, according to `origin`; 0 if
        unknown."""
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
        """Return the checkpoint of a mapping from `as_json`. Raises ValueError, with the reason, for other values."""
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
"""The fields of a checkpoint's origin. `identity` identifies the outbox; `was` are earlier identities of the outbox
that an operator confirmed. `leaders` maps epochs to leaders, from the last leader that saved on. `timeline` is the
timeline of the Postgres server. `kafka` is the group and the topic under which the checkpoint was written. `placed` is
set if an operator wrote the checkpoint and no leader has saved since. `witness` counts the writes of the subscription's
row in this generation. A higher count in Kafka's checkpoint than in the row reveals that the row was restored, with its
server, to an earlier state."""
