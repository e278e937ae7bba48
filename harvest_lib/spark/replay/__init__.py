"""Fill a new subscription's topics with records delivered before: archive and outbox, once each, in per-key order."""

from harvest_lib.spark.replay.filling import ReplayReport, replay

__all__ = ["ReplayReport", "replay"]
