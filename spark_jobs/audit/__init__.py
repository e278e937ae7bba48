"""The audit by Spark: of what was committed, what is in Kafka? For logs that one process cannot compare.

run          an audit from end to end
kafka_side   the records in Kafka
committed    what was committed, and what of it waits
comparison   aggregates by record, windows by key
stages       what Spark does, one after the other
state        what an audit leaves for the next
results      the tables in the schema `harvest_audit`
"""

from spark_jobs.audit.committed import Business
from spark_jobs.audit.run import audit
from spark_jobs.audit_summary import MUST_BE_ZERO, AuditSummary

__all__ = ["MUST_BE_ZERO", "AuditSummary", "Business", "audit"]
