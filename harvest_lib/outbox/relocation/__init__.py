"""Changes of an outbox's home: from goharvest's table to the native table, and from another server to this server."""

from harvest_lib.outbox.relocation.migration import Migration
from harvest_lib.outbox.relocation.moved_rows import MovedRows
from harvest_lib.outbox.relocation.moves import Moves
from harvest_lib.outbox.relocation.restamp import Restamping

__all__ = ["Migration", "MovedRows", "Moves", "Restamping"]
