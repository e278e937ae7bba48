"""Where records come from."""

from harvest_lib.source.batch_protocol import Page, PagedSource, Position
from harvest_lib.source.claim_protocol import Batch, Source
from harvest_lib.source.mark import MarkSource
from harvest_lib.source.mark_batches import MarkPages
from harvest_lib.source.selection import Selection
from harvest_lib.source.snapshot import SnapshotSource
from harvest_lib.source.thread import SourceThread
from harvest_lib.source.transaction_id import TransactionIdSource

__all__ = [
    "Batch",
    "MarkPages",
    "MarkSource",
    "Page",
    "PagedSource",
    "Position",
    "Selection",
    "SnapshotSource",
    "Source",
    "SourceThread",
    "TransactionIdSource",
]
