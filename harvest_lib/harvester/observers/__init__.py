"""Observers of batches: counts of a harvester, and its spans."""
