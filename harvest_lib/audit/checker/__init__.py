"""The checker: does a history keep the promise of its delivery? Anomalies have the names of Jepsen's Kafka workload."""

from harvest_lib.audit.checker.check import check
from harvest_lib.audit.checker.failover_losses import FAILED_OVER
from harvest_lib.audit.checker.finding import ANOMALIES, Anomaly, Finding, Verdict
from harvest_lib.audit.checker.promise import Delivery, Promise

__all__ = ["ANOMALIES", "FAILED_OVER", "Anomaly", "Delivery", "Finding", "Promise", "Verdict", "check"]
