"""Hands rows from Postgres over to Kafka in C, where that was built; everywhere else Python does the same."""

from harvest_lib.native.library import Implementation, implementation
from harvest_lib.native.rows import NativeRows, RowsSummary, by_id, rows_of
from harvest_lib.native.sender import MALFORMED, NativeSender, close_with_sender, error_of, make_with_sender

__all__ = [
    "MALFORMED",
    "Implementation",
    "NativeRows",
    "NativeSender",
    "RowsSummary",
    "by_id",
    "close_with_sender",
    "error_of",
    "implementation",
    "make_with_sender",
    "rows_of",
]
