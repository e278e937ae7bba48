"""Outboxes that move: an older table to the native one, rows and subscriptions to another server."""

from harvest_lib.outbox.relocation.migration import Migration
from harvest_lib.outbox.relocation.moved_rows import MovedRows
from harvest_lib.outbox.relocation.moves import Moves
from harvest_lib.outbox.relocation.restamp import Restamping

__all__ = ["Migration", "MovedRows", "Moves", "Restamping"]
