"""Settings of the interpreter for a process that only harvests or consumes; they affect the whole process."""

import gc
import sys

_SWITCH_SECONDS = 0.0001
_COLLECT_AFTER_OBJECTS = 200_000
"""More objects than wait in memory at a time: they are freed before the collector has checked them once."""


def tune_interpreter() -> None:
    """Let threads take turns sooner, and collect garbage less often: for a process that harvests.

    The sending thread holds the interpreter for the whole switch interval, 5 ms by default, while the reading thread
    waits for the interpreter with an answer from the database. This wait and the collector cost a drain a quarter of
    its rate, measured by `harvest bench`. `harvest run` and `harvest pipeline run` do this; a program that embeds a
    harvester decides for itself.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    tune_collector()


def tune_collector() -> None:
    """Collect garbage less often: for a process that harvests or consumes.

    Records on their way are many objects without cycles, which the collector scans again and again. Consumers do not
    need the rest of `tune_interpreter`: their threads do the same work, and shorter turns only cost time.
    """
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 20, 50)
