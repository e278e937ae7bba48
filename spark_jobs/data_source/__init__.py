"""The Spark data source `outbox`."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_jobs.data_source.read_options import read_schema
from spark_jobs.data_source.reader import OutboxReader
from spark_jobs.data_source.stream_reader import OutboxStreamReader

__all__ = ["OutboxDataSource"]


class OutboxDataSource(DataSource):
    """The format `outbox`: `spark.dataSource.register(OutboxDataSource)` makes it known to a session."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "outbox"

    def schema(self) -> StructType:
        """Return the columns of a record, as the table has them."""
        return read_schema(self.options)

    def reader(self, schema: StructType) -> OutboxReader:
        """Return what reads once."""
        return OutboxReader(self.options, schema)

    def streamReader(self, schema: StructType) -> OutboxStreamReader:  # noqa: N802 - Spark's name
        """Return what follows the outbox."""
        return OutboxStreamReader(self.options, schema)
