"""The audit by Spark, which compares committed records with Kafka, for logs that are too large for a single process.

run          an audit from end to end
kafka_side   the records in Kafka
committed    the committed records, and the records that wait
comparison   aggregates by record, windows by key
stages       the steps of Spark, in order
state        the state that an audit saves for the next audit

`harvest_lib.audit` has the result tables in the schema `harvest_audit`, and the statement of committed records.
"""

from harvest_lib.audit.summary import MUST_BE_ZERO, AuditSummary
from harvest_lib.spark.audit.committed import Business
from harvest_lib.spark.audit.run import audit

__all__ = ["MUST_BE_ZERO", "AuditSummary", "Business", "audit"]
