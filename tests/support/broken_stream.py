"""`docs/examples/spark_stream.py`, broken: a micro-batch that is repeated has another id in the ledger."""

import importlib.util
import uuid
from pathlib import Path

from pyspark.sql import SparkSession

from harvest_lib.spark.data_source import OutboxDataSource
from harvest_lib.spark.data_source.writer import OutboxStreamWriter

_EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "spark_stream.py"


class BrokenWriter(OutboxStreamWriter):
    def commit(self, messages, batchId):
        super().commit(messages, f"{batchId}-{uuid.uuid4()}")


class BrokenSource(OutboxDataSource):
    def streamWriter(self, schema, overwrite):
        return BrokenWriter(self.options, schema, overwrite=overwrite)


if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("spark_stream", _EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    SparkSession.builder.getOrCreate().dataSource.register(BrokenSource)
    example.main()
