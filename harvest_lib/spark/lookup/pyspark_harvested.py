"""The module by which Spark finds the format `harvested`: see `pyspark_outbox`."""

try:
    from harvest_lib.spark.data_source import HarvestedDataSource as DefaultSource
except Exception:  # noqa: BLE001, S110 - as in `pyspark_outbox`
    pass
else:
    __all__ = ["DefaultSource"]
