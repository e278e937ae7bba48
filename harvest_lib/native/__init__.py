"""Hands rows from Postgres over to Kafka in C, if the C library was built. Without it Python does the same work."""

from harvest_lib.native.encoded_rows import EncodedRows, Field, Wrapping, encode
from harvest_lib.native.library import Implementation, implementation
from harvest_lib.native.pieces import NativeRecords, Pieces, kinds_of, targets_of
from harvest_lib.native.rows import NativeRows, by_id, rows_of
from harvest_lib.native.sender import (
    LATE,
    MALFORMED,
    UNCONFIRMED,
    NativeSender,
    close_with_sender,
    error_of,
    make_with_sender,
)

__all__ = [
    "LATE",
    "MALFORMED",
    "UNCONFIRMED",
    "EncodedRows",
    "Field",
    "Implementation",
    "NativeRecords",
    "NativeRows",
    "NativeSender",
    "Pieces",
    "Wrapping",
    "by_id",
    "close_with_sender",
    "encode",
    "error_of",
    "implementation",
    "kinds_of",
    "make_with_sender",
    "rows_of",
    "targets_of",
]
