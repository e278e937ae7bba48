"""Waiting for a condition, with an end: tests never sleep for luck."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE_SECONDS = 60
"""A deadline costs nothing where it is met: it is far above what a busy machine needs, and below a test's timeout."""
_POLL_SECONDS = 0.02


def eventually(condition: Callable[[], Value], message: str = "", *, seconds: float = PATIENCE_SECONDS) -> Value:
    """Return the condition's value once that is true; fails after the given seconds."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {message or condition}")
        time.sleep(_POLL_SECONDS)
