"""Waiting for a condition, with an end: tests never sleep for luck."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

_POLL_SECONDS = 0.02


def eventually(condition: Callable[[], Value], seconds: float = 10, message: str = "") -> Value:
    """Return what the condition says once that is true; fails after the given seconds."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {message or condition}")
        time.sleep(_POLL_SECONDS)
