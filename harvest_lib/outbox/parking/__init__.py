"""The tables of parked records: `<outbox>_parked` contains whole records, `<outbox>_parked_ids` only lists their ids.

Records of an outbox that is marked and purged move to `<outbox>_parked`. Records that subscriptions read stay in the
outbox, and `<outbox>_parked_ids` lists their ids. Operators list, retry and drop parked records with `operator_records`
and `operator_ids`. Leaders park records with `leader_records` and `leader_ids`. `harvest_lib.batching` decides which
records are parked.
"""

from harvest_lib.outbox.parking.operator_ids import ParkedIdTable
from harvest_lib.outbox.parking.operator_records import ParkedRecords
from harvest_lib.outbox.parking.parked_record import (
    Dropped,
    ParkedCounts,
    ParkedRecord,
    ParkedRow,
    ParkedSelection,
    ParkedSummary,
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
    "ParkedSummary",
    "Retried",
]
