"""Checks whether a history keeps the promise of its delivery. Anomalies have the names of Jepsen's Kafka workload."""

from infra.chaos.checker.check import check
from infra.chaos.checker.failover_losses import FAILED_OVER
from infra.chaos.checker.finding import ANOMALIES, Anomaly, AnomalyFinding, HistoryVerdict
from infra.chaos.checker.promise import Delivery, Promise

__all__ = ["ANOMALIES", "FAILED_OVER", "Anomaly", "AnomalyFinding", "Delivery", "HistoryVerdict", "Promise", "check"]
