"""The plan of a run, decided by its seed alone."""

import random
from dataclasses import asdict, dataclass

MODES = (
    "snapshot-transactional",
    "snapshot-pipelined",
    "snapshot-barrier",
    "snapshot-sequenced",
    "mark-barrier",
    "mark-pipelined",
    "mark-transactional",
    "mark-sequenced",
    "transaction_id-transactional",
    "transaction_id-pipelined",
    "transaction_id-barrier",
    "transaction_id-sequenced",
    "snapshot-mixed",
    "snapshot-transactional-shards",
    "snapshot-barrier-shards",
    "snapshot-sequenced-shards",
    "transaction_id-sequenced-shards",
)
"""Sources and deliveries of pools; `mixed`: some members deliver in transactions, others under the barrier, and the
lock elects them. With `shards` each key belongs to one of several, which are led and read apart."""
SHARDS = (2, 3)
"""So many there are, where there are several."""
EXACTLY_ONCE = ("transactional", "sequenced")
_WITH_EPOCHS = ("split", "split")
_DISASTERS = (
    "kill",
    "freeze",
    "cut off",
    "crash",
    "crash once sent",
    "outage",
    "slow wire",
    "slow wire",
    "stop",
    "revoke",
)
_ONLY_READ = ("rewind",)
_ACKNOWLEDGED = ("late save", "late save")
_RATES = (0.0, 0.01, 0.03, 0.08)

FAULTY_SECONDS = 4.0
"""So long faults go on; then everything heals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run: `rate` is the share of calls that go wrong, `disasters` are what and when, in seconds."""

    seed: int
    mode: str
    rate: float
    disasters: tuple[tuple[float, str], ...]
    commits_late: bool
    """True if writers commit with `synchronous_commit=off`."""
    poisoned: bool
    """True if Kafka refuses some records until everything heals."""
    harvesters: int
    transactions: int
    batch: int
    """Records in the first batch."""
    by_lock: bool
    """True if the leader is elected by the lock in Postgres."""
    shards: int

    @property
    def source(self):
        return self.mode.split("-")[0]

    @property
    def delivery(self):
        return self.mode.split("-")[1]

    def delivery_of(self, number):
        """Return how a member of the pool delivers."""
        return self.delivery if self.delivery != "mixed" else ("transactional", "barrier")[number % 2]

    @property
    def has_epochs(self):
        """True if a leader raises the epoch of its subscription."""
        return self.source != "mark" or self.delivery in EXACTLY_ONCE

    def __str__(self):
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


def plan_of(seed, modes=MODES):
    """Return the plan of a seed; each mode has its turn."""
    dice = random.Random(seed * 2 + 1)
    mode = modes[seed % len(modes)]
    kinds = _DISASTERS
    if not mode.startswith("mark") or mode.endswith(EXACTLY_ONCE):
        kinds += _WITH_EPOCHS
    if not mode.startswith("mark"):
        kinds += _ONLY_READ
    if "sequenced" in mode:
        kinds += _ACKNOWLEDGED
    disasters = sorted((round(dice.uniform(0.2, 3.5), 3), dice.choice(kinds)) for _ in range(dice.randint(0, 4)))
    return Plan(
        seed=seed,
        mode=mode,
        rate=dice.choice(_RATES),
        disasters=tuple(disasters),
        commits_late=dice.random() < 0.5,
        poisoned=dice.random() < 0.2,
        harvesters=dice.randint(2, 3),
        transactions=dice.randint(8, 24),
        batch=dice.choice((2, 5, 12)),
        by_lock=dice.random() < 0.5 or mode.endswith("mixed"),
        shards=dice.choice(SHARDS) if mode.endswith("shards") else 1,
    )
