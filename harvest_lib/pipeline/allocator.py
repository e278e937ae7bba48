"""Allocator settings with which the memory of large values returns to the system when the values are freed.

When glibc frees a large value, it raises its mmap threshold to that value's size, up to 32 MB. After that, rows of 1 MB
are allocated in an arena per thread, and holes in an arena do not return to the system. Arrow's memory pools also
retain freed pages. With a fixed threshold, and with the system's allocator for Arrow, the process has only memory in
use. Settings from the environment (`MALLOC_MMAP_THRESHOLD_`, `ARROW_DEFAULT_MEMORY_POOL`) are not changed.
"""

import ctypes
import os
from contextlib import suppress

LARGE_BYTES = 256 << 10
"""Values from this size on, in bytes, are allocated by mmap, in separate pages."""

_M_MMAP_THRESHOLD = -3
"""The parameter M_MMAP_THRESHOLD of `mallopt`, as in `malloc.h`."""


def return_large_values() -> None:
    """Apply these allocator settings to this process. Without glibc, only Arrow's setting has an effect."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow reads it when it is imported
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
