"""Fill a new subscription's topics with records delivered before: archive and outbox, once each, in per-key order."""

from spark_jobs.replay.filling import ReplayReport, replay

__all__ = ["ReplayReport", "replay"]
