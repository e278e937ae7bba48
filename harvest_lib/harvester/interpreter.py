"""Settings of the interpreter for a process that only harvests or consumes; they affect the whole process."""

import gc
import sys

_SWITCH_SECONDS = 0.0001
_COLLECT_AFTER_OBJECTS = 200_000
"""Number of new objects after which the garbage collector runs. Fewer objects wait in memory at a time, so most objects
are freed before the collector checks them."""


def tune_interpreter() -> None:
    """Tune the interpreter for a process that harvests: shorter turns of threads, and fewer garbage collections.

    By default, the sending thread holds the interpreter lock for the whole switch interval of 5 ms. Meanwhile the
    reading thread, which has an answer from the database, waits for the lock. This wait and the garbage collector cost
    a drain a quarter of its rate, measured by `harvest bench`. `harvest run` and `harvest pipeline run` call this
    function; a program that embeds a harvester decides itself.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    tune_collector()


def tune_collector() -> None:
    """Make garbage collections rarer, for a process that harvests or consumes.

    Records in memory are many objects without cycles, which the collector would scan repeatedly. Consumers do not need
    the shorter turns of `tune_interpreter`: their threads do the same work, and shorter turns only cost time.
    """
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 20, 50)
