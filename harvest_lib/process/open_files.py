"""The number of open files of this process, and its limit. Each Kafka client and each connection needs open files."""

import resource
from contextlib import suppress
from pathlib import Path

_ENOUGH = 1_048_576
"""Number that is used and reported in place of "no limit". It is the kernel's default maximum."""


def raise_limit() -> int:
    """Raise the limit of open files to the maximum that this process may set (`ulimit -Hn`). Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # a container may forbid the change
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return limit()


def limit() -> int:
    """Return the number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def used() -> int:
    """Return the number of files that this process has open; 0 if the system does not report the number."""
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    return 0
