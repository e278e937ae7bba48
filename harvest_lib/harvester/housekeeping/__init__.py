"""Periodic work on separate threads: segments, added partitions, changes of the table, and the progress log."""
