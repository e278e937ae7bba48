"""Outbox records: the public dataclass for writers, the row (a tuple) inside the harvester, and the header that names a
record's origin in Kafka."""

from harvest_lib.record.outbox_record import (
    HEADERS,
    INTERNAL_TOPICS,
    MESSAGE_ID,
    TOPIC_MAX_CHARS,
    Header,
    OutboxRecord,
    RecordLimits,
    is_legal_topic,
    misleading_header,
)
from harvest_lib.record.row import (
    HEADER_NAMES,
    HEADER_VALUES,
    ID,
    KEY,
    PAGE_BYTES,
    TOPIC,
    VALUE,
    Row,
    Unreadable,
    row_bytes,
)

__all__ = [
    "HEADERS",
    "HEADER_NAMES",
    "HEADER_VALUES",
    "ID",
    "INTERNAL_TOPICS",
    "KEY",
    "MESSAGE_ID",
    "PAGE_BYTES",
    "TOPIC",
    "TOPIC_MAX_CHARS",
    "VALUE",
    "Header",
    "OutboxRecord",
    "RecordLimits",
    "Row",
    "Unreadable",
    "is_legal_topic",
    "misleading_header",
    "row_bytes",
]
