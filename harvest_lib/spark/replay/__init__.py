"""Fills a new subscription's topics with earlier records from archive and outbox: each record once, in order per
key."""

from harvest_lib.spark.replay.filling import ReplayReport, replay

__all__ = ["ReplayReport", "replay"]
