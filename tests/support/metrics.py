"""The metrics that there are, by name."""

from harvest_lib.telemetry import catalogue

METRICS = {each.name: each for each in vars(catalogue).values() if isinstance(each, catalogue.Metric)}
