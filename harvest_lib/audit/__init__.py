"""The audit: of what was committed, what is in Kafka?

`audit` compares two streams and knows neither Kafka nor Postgres; `read_topics` makes the one, `read_query` and
`read_file` the other.
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
