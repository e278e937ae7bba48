"""Observers of a harvester's batches: one updates metrics, the other makes spans."""
