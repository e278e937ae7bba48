"""The outbox table and its side tables: definitions, checks, and the functions with which writers append records."""

from harvest_lib.outbox.append import append, append_async
from harvest_lib.outbox.checks import add_checks
from harvest_lib.outbox.column_mapping import check_column_mapping
from harvest_lib.outbox.load_generator import Load, pump
from harvest_lib.outbox.native_table import NativeTable, create_beside
from harvest_lib.outbox.subscriber_sql import subscribers_sql
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.outbox.table_visibility import translate_table_errors

__all__ = [
    "Load",
    "NativeTable",
    "OutboxTable",
    "add_checks",
    "append",
    "append_async",
    "check_column_mapping",
    "create_beside",
    "pump",
    "subscribers_sql",
    "translate_table_errors",
]
