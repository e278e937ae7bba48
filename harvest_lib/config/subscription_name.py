"""The names that a subscription can have."""

import re

PATTERN = r"^[A-Za-z0-9._-]{1,100}$"
NEXT_STEP = "use 1 to 100 of the characters a-z, A-Z, 0-9, `.`, `_` and `-`"


def is_legal_subscription(name: str) -> bool:
    """Return True if a subscription can have this name."""
    return re.fullmatch(PATTERN.strip("^$"), name) is not None
