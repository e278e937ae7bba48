"""The checker: does a history keep the promise of its delivery? Anomalies have the names of Jepsen's Kafka workload."""

from harvest_lib.audit.checker.check import check
from harvest_lib.audit.checker.finding import ANOMALIES, Anomaly, Finding, Verdict
from harvest_lib.audit.checker.promise import Delivery, Promise
from harvest_lib.audit.checker.regressions import TOOK_OVER

__all__ = ["ANOMALIES", "TOOK_OVER", "Anomaly", "Delivery", "Finding", "Promise", "Verdict", "check"]
