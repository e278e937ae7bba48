"""Periodic work and watches beside the loop: segments, added partitions, the table, the progress of the process."""
