"""Hypothesis's profiles: `gate` draws the same examples in each run, `random` draws other ones and more of them.

The environment variable HYPOTHESIS_PROFILE chooses; without it, `gate` does. Neither has a deadline: a busy machine is
slow, and no finding. For the same reason neither minds that examples are drawn slowly.
"""

import os

from hypothesis import HealthCheck, settings

VARIABLE = "HYPOTHESIS_PROFILE"
# Where CI is set, Hypothesis' own default keeps no examples: what fails once could not be drawn again.
_BOTH = settings(
    settings.get_profile("default"), deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
PROFILES = {
    "gate": settings(_BOTH, derandomize=True, max_examples=100),
    "random": settings(_BOTH, derandomize=False, max_examples=500),
}


def chosen() -> str:
    """Return the name of the profile in use."""
    name = os.environ.get(VARIABLE, "gate")
    if name not in PROFILES:
        raise ValueError(f"{VARIABLE} is `{name}`: one of {', '.join(PROFILES)}")
    return name


def examples(*, gate: int, random: int) -> int:
    """Return the number of examples of a test in the profile in use."""
    return {"gate": gate, "random": random}[chosen()]


def load() -> None:
    """Put the chosen profile in use, for each test that is defined from here on."""
    for name, profile in PROFILES.items():
        settings.register_profile(name, profile)
    settings.load_profile(chosen())


load()
