"""The module by which Spark finds the format `outbox` without `register`. The wheel has it at its top.

Spark imports every top-level module `pyspark_*` of its Python, for every user, before it looks up a format that is no
class of Java. If one of these modules raises, Spark finds none of them. So this module has no `DefaultSource` where
`harvest_lib` cannot be imported, and raises nothing; a Spark that is not tested is refused when the format is used.
"""

try:
    from harvest_lib.spark.data_source import OutboxDataSource as DefaultSource
except Exception:  # noqa: BLE001, S110 - as above
    pass
else:
    __all__ = ["DefaultSource"]
