"""The tables of parked records: `<outbox>_parked` has the records of a marked table, `<outbox>_parked_ids` lists ids.

`operator_records` and `operator_ids` list, retry and drop for operators; `leader_records` and `leader_ids` park for a
leader. `harvest_lib.batching` decides which records are parked.
"""

from harvest_lib.outbox.parking.operator_ids import ParkedIdTable
from harvest_lib.outbox.parking.operator_records import ParkedRecords
from harvest_lib.outbox.parking.parked_record import (
    Dropped,
    ParkedCounts,
    ParkedRecord,
    ParkedRow,
    ParkedSelection,
    Retried,
)

__all__ = [
    "Dropped",
    "ParkedCounts",
    "ParkedIdTable",
    "ParkedRecord",
    "ParkedRecords",
    "ParkedRow",
    "ParkedSelection",
    "Retried",
]
