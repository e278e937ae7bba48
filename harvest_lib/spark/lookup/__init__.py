"""Modules that the wheel has at its top, where Spark looks for formats."""
