"""The data sources of Spark, `format("outbox")` and `format("harvested")`.

Spark finds them by the modules `pyspark_outbox` and `pyspark_harvested` in the driver's Python. Elsewhere a session
registers them: `register(spark)`.

For the options of `df.write.mode("append")` and `df.writeStream` see `harvest_lib.spark.data_source.write_options`.
"""

from typing import TYPE_CHECKING

import pyspark
from pyspark.errors import AnalysisException

from harvest_lib.spark.tested import require_tested

try:
    from pyspark.sql.datasource import DataSource
except ModuleNotFoundError:
    require_tested(pyspark.__version__)  # Spark 3 has no data sources in Python
    raise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["HarvestedDataSource", "OutboxDataSource", "register"]


class _Tested(DataSource):
    def __init__(self, options: dict[str, str]) -> None:
        """Raise ConfigError in a Spark that is not tested. The import, as by `pyspark_outbox`, raises nothing there."""
        require_tested(pyspark.__version__)
        super().__init__(options)


class OutboxDataSource(_Tested):
    """Write frames and streams into an outbox, each batch once, and read an outbox as a frame or a stream."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "outbox"

    def schema(self) -> "StructType":
        """Return the schema of a read: the columns of the outbox table."""
        from harvest_lib.spark.data_source.read_options import read_schema  # noqa: PLC0415 - a writer does not need it

        return read_schema(self.options)

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """Return the reader of `spark.read`, which reads a snapshot of the outbox."""
        from harvest_lib.spark.data_source.pushed import is_pushing  # noqa: PLC0415 - as above
        from harvest_lib.spark.data_source.reader import FilteringReader, SparkOutboxReader  # noqa: PLC0415 - as above

        return (FilteringReader if is_pushing() else SparkOutboxReader)(self.options, schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":
        """Return the reader of `spark.readStream`, which follows the outbox."""
        from harvest_lib.spark.data_source.versions import stream_reader_class  # noqa: PLC0415 - as above

        return stream_reader_class()(self.options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":  # noqa: FBT001 - Spark's signature
        """Return the writer of `df.write`, which stages and promotes a batch."""
        from harvest_lib.spark.data_source.writer import OutboxWriter  # noqa: PLC0415 - a reader does not need it

        return OutboxWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(
        self,
        schema: "StructType",
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> "DataSourceStreamWriter":
        """Return the writer of `df.writeStream`, which stages and promotes a micro-batch."""
        from harvest_lib.spark.data_source.writer import OutboxStreamWriter  # noqa: PLC0415 - as above

        return OutboxStreamWriter(self.options, schema, overwrite=overwrite)


class HarvestedDataSource(_Tested):
    """Read what the harvester delivered to topics as a frame or a stream. It needs no Java library.

    The function `harvest_lib.spark.data_source.harvested.harvested` returns the same columns. The class
    `harvest_lib.spark.data_source.topic_options.TopicOptions` describes the options.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "harvested"

    def schema(self) -> "StructType":
        """Return the schema of a read."""
        from harvest_lib.spark.data_source.topic_options import SCHEMA  # noqa: PLC0415 - the outbox does not need it

        return SCHEMA

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """Return the reader of `spark.read`, which reads topics up to their present ends."""
        from harvest_lib.spark.data_source.topic_reader import TopicBatchReader  # noqa: PLC0415 - as above

        return TopicBatchReader(self.options, schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":
        """Return the reader of `spark.readStream`, which follows topics."""
        from harvest_lib.spark.data_source.versions import topic_reader_class  # noqa: PLC0415 - as above

        return topic_reader_class()(self.options, schema)


def register(spark: "SparkSession") -> None:
    """Register both formats in a session, unless Spark has found them by itself and, as Spark 4.0, refuses others.

    `spark` is a classic session or one of Spark Connect. Raises Spark's errors.
    """
    for source in (OutboxDataSource, HarvestedDataSource):
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
