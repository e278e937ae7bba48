"""The audit: compares committed records with the records in Kafka.

`read_query` and `read_file` yield the committed records, and `read_topics` yields the records in Kafka. `audit`
compares the two streams; it needs no access to Kafka or Postgres itself.
"""

from harvest_lib.audit.committed import read_file, read_query
from harvest_lib.audit.comparison import audit
from harvest_lib.audit.kafka_log import Isolation, read_topics
from harvest_lib.audit.records import CommittedRecord, ObservedRecord
from harvest_lib.audit.report import MUST_BE_ZERO, AuditReport, Example, Explanation, LeaderStatistics

__all__ = [
    "MUST_BE_ZERO",
    "AuditReport",
    "CommittedRecord",
    "Example",
    "Explanation",
    "Isolation",
    "LeaderStatistics",
    "ObservedRecord",
    "audit",
    "read_file",
    "read_query",
    "read_topics",
]
