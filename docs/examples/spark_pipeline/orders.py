"""A declarative pipeline of Spark 4.1 with an outbox as its sink.

spark-pipelines run --spec docs/examples/spark_pipeline/spark-pipeline.yml

HARVEST_DSN is the address of Postgres, PGPASSWORD the password, ORDERS_FOLDER the folder where JSON files arrive.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

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
    """Return the stream of orders."""
    schema = "order_id bigint, customer string, cents bigint"
    return spark.readStream.schema(schema).json(os.environ["ORDERS_FOLDER"])
