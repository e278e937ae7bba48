"""Memory of large values: returned to the system once they are freed.

When a large value is freed, glibc raises its mmap threshold to that value's size, up to 32 MB. Rows of 1 MB then share
an arena per thread, and the holes in arenas are not returned. Arrow's own pools keep freed pages as well. A fixed
threshold, and the system's allocator for Arrow, keep only memory in use. Values that the environment sets
(`MALLOC_MMAP_THRESHOLD_`, `ARROW_DEFAULT_MEMORY_POOL`) stays.
"""

import ctypes
import os
from contextlib import suppress

LARGE_BYTES = 256 << 10
"""Values from this size on have pages of their own."""

_M_MMAP_THRESHOLD = -3
"""See `malloc.h`."""


def return_large_values() -> None:
    """Set the allocator of this process so. Without effect where it is not glibc's."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # read when pyarrow is imported
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
