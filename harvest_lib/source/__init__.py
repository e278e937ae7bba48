"""The sources: classes that read outbox records from Postgres."""

from harvest_lib.record.checkpoint import Position
from harvest_lib.source.batch_protocol import BatchSource, Page
from harvest_lib.source.claim_protocol import ClaimedRows, ClaimSource
from harvest_lib.source.mark import MarkSource
from harvest_lib.source.mark_batches import MarkPages
from harvest_lib.source.selection import Selection
from harvest_lib.source.snapshot import SnapshotSource
from harvest_lib.source.transaction_id import TransactionIdSource

__all__ = [
    "BatchSource",
    "ClaimSource",
    "ClaimedRows",
    "MarkPages",
    "MarkSource",
    "Page",
    "Position",
    "Selection",
    "SnapshotSource",
    "TransactionIdSource",
]
