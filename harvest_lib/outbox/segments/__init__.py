"""The segments (partitions) of an outbox: creation, rotation, retention, archive, and checks of single segments."""

from harvest_lib.outbox.segments.creation import Ensured, ensure_segments
from harvest_lib.outbox.segments.detached import Detached, detached_segments
from harvest_lib.outbox.segments.retention import Dropping, drop_passed
from harvest_lib.outbox.segments.rotation import Rotated, rotate_segment
from harvest_lib.outbox.segments.segment_list import Segment, Segments

__all__ = [
    "Detached",
    "Dropping",
    "Ensured",
    "Rotated",
    "Segment",
    "Segments",
    "detached_segments",
    "drop_passed",
    "ensure_segments",
    "rotate_segment",
]
