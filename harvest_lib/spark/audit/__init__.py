"""The audit by Spark, which compares committed records with Kafka, for logs that are too large for a single process.

run          an audit from end to end
kafka_side   the records in Kafka
committed    the committed records, and the records that wait
comparison   aggregates by record, windows by key
stages       the steps of Spark, in order
state        the state that an audit saves for the next audit
results      the tables in the schema `harvest_audit`
"""

from harvest_lib.spark.audit.committed import Business
from harvest_lib.spark.audit.run import audit
from harvest_lib.spark.audit_summary import MUST_BE_ZERO, AuditSummary

__all__ = ["MUST_BE_ZERO", "AuditSummary", "Business", "audit"]
