"""The outbox table: its definition, appending by writers, its backlog and its parked records."""

from harvest_lib.outbox.append import append, append_async
from harvest_lib.outbox.checks import add_checks
from harvest_lib.outbox.column_mapping import check_column_mapping
from harvest_lib.outbox.detached import Detached, detached_segments
from harvest_lib.outbox.load_generator import Load, pump
from harvest_lib.outbox.migration import Migration
from harvest_lib.outbox.moved_rows import MovedRows
from harvest_lib.outbox.moves import Moves
from harvest_lib.outbox.native_table import NativeTable, create_beside
from harvest_lib.outbox.parked import ParkedRecords
from harvest_lib.outbox.parked_ids import ParkedIdTable
from harvest_lib.outbox.parked_record import Dropped, ParkedCounts, ParkedRecord, ParkedRow, ParkedSelection, Retried
from harvest_lib.outbox.restamp import Restamping
from harvest_lib.outbox.segment_creation import Ensured, ensure_segments
from harvest_lib.outbox.segment_retention import Dropping, drop_passed
from harvest_lib.outbox.segment_rotation import Rotated, rotate_segment
from harvest_lib.outbox.segments import Segment, Segments
from harvest_lib.outbox.subscriber_sql import subscribers_sql
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.outbox.table_visibility import translate_table_errors

__all__ = [
    "Detached",
    "Dropped",
    "Dropping",
    "Ensured",
    "Load",
    "Migration",
    "MovedRows",
    "Moves",
    "NativeTable",
    "OutboxTable",
    "ParkedCounts",
    "ParkedIdTable",
    "ParkedRecord",
    "ParkedRecords",
    "ParkedRow",
    "ParkedSelection",
    "Restamping",
    "Retried",
    "Rotated",
    "Segment",
    "Segments",
    "add_checks",
    "append",
    "append_async",
    "check_column_mapping",
    "create_beside",
    "detached_segments",
    "drop_passed",
    "ensure_segments",
    "pump",
    "rotate_segment",
    "subscribers_sql",
    "translate_table_errors",
]
