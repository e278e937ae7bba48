"""What a run is: decided by its seed alone."""

import random
from dataclasses import asdict, dataclass

MODES = (
    "snapshot-transactional",
    "snapshot-pipelined",
    "snapshot-barrier",
    "mark-barrier",
    "mark-pipelined",
    "mark-transactional",
    "transaction_id-transactional",
    "transaction_id-pipelined",
    "transaction_id-barrier",
)
"""How the outbox is read, and how Kafka gets it."""
_IN_BATCHES = ("split", "split")
_DISASTERS = ("kill", "freeze", "cut off", "crash", "crash", "outage", "slow wire", "stop")
_ONLY_READ = ("rewind",)
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
    """Whether writers commit with `synchronous_commit=off`."""
    poisoned: bool
    """Whether Kafka refuses some records until everything heals."""
    harvesters: int
    transactions: int
    batch: int
    """Records in the first batch."""
    lanes: int
    """Producers side by side, where terms do not go in batches."""

    @property
    def source(self):
        return self.mode.partition("-")[0]

    @property
    def delivery(self):
        return self.mode.partition("-")[2]

    @property
    def by_batches(self):
        """Whether a term goes in batches, and its subscription has an epoch."""
        return self.source != "mark" or self.delivery == "transactional"

    def __str__(self):
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


def plan_of(seed, modes=MODES):
    """Return the plan of a seed; each mode has its turn."""
    dice = random.Random(seed * 2 + 1)
    mode = modes[seed % len(modes)]
    kinds = _DISASTERS
    if mode.endswith("transactional") or not mode.startswith("mark"):
        kinds += _IN_BATCHES
    if not mode.startswith("mark"):
        kinds += _ONLY_READ
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
        lanes=dice.choice((1, 1, 2)),
    )
