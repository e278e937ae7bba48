"""Speed of the harvester, against floors measured in the same run: `python -m tests.benchmarks`, or `make bench`.

Absolute figures move by a factor of two with the machine's mood, so targets are ratios. Nothing here gates a build: the
gate on counts is tests/integration/harvester/test_statement_counts_marking.py.
"""
