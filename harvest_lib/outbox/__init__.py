"""The outbox table: its definition, how writers append to it, and what waits in it."""

from harvest_lib.outbox.append import append, append_async
from harvest_lib.outbox.parked import ParkedRecords
from harvest_lib.outbox.table import OutboxTable

__all__ = ["OutboxTable", "ParkedRecords", "append", "append_async"]
