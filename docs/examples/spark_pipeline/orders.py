"""A declarative pipeline of Spark 4.1 whose sink is an outbox.

spark-pipelines run --spec docs/examples/spark_pipeline/spark-pipeline.yml

HARVEST_DSN says where Postgres is, PGPASSWORD has the password, ORDERS_FOLDER is where files of JSON come.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from harvest_lib.spark.data_source import OutboxDataSource

spark = SparkSession.active()
spark.dataSource.register(OutboxDataSource)

dp.create_sink(
    "orders_outbox",
    "outbox",
    {
        "dsn": os.environ["HARVEST_DSN"],
        "stream": "orders-pipeline",
        "topic": "orders",
        "key": "customer",
        "orderBy": "order_id",
    },
)


@dp.append_flow(target="orders_outbox")
def orders() -> DataFrame:
    """Return the orders as they come."""
    schema = "order_id bigint, customer string, cents bigint"
    return spark.readStream.schema(schema).json(os.environ["ORDERS_FOLDER"])
