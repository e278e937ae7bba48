"""Settings of the interpreter for a process that does nothing but harvest or consume; they concern all of it."""

import gc
import sys

_SWITCH_SECONDS = 0.0001
_COLLECT_AFTER_OBJECTS = 200_000
"""More than wait in memory at a time: these are gone before the collector has checked them once."""


def tune_interpreter() -> None:
    """Let threads take turns sooner, and collect garbage less often: for a process that harvests.

    The thread that sends holds the interpreter for as long as it may, 5 ms by default, while the one that asks the
    database waits for it with an answer in hand. That and the collector cost a drain a quarter of its rate, measured
    by `harvest bench`. `harvest run` and `harvest pipeline run` do this; a program that embeds one decides for itself.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    tune_collector()


def tune_collector() -> None:
    """Collect garbage less often: for a process that harvests or consumes.

    Records on their way are many objects that form no cycles, which the collector looks through again and again.
    Consumers do without the rest of `tune_interpreter`: their threads do all the same, and to take turns sooner only
    costs.
    """
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 20, 50)
