"""Write a stream of JSON files into a business table and an outbox: each row once, whatever crashes, until killed.

    spark-submit docs/examples/spark_stream.py <folder of files> <checkpoint> <topic>

HARVEST_DSN is the address of Postgres, PGPASSWORD the password. The outbox (`harvest init`) and the table must exist:

    CREATE TABLE orders (order_id bigint PRIMARY KEY, customer text, cents bigint, placed_at timestamptz)

After a failure start it again with the same checkpoint. No row is written twice.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

PLACED = "order_id bigint, customer string, quantity int, price decimal(12, 2), placed_at timestamp"


def main() -> None:
    """Start the query, and wait for it."""
    files, checkpoint, topic = sys.argv[1:]
    spark = SparkSession.builder.appName("orders").getOrCreate()

    placed = spark.readStream.schema(PLACED).option("maxFilesPerTrigger", 10).json(files)
    orders = placed.select(
        "order_id",
        F.lower("customer").alias("customer"),
        (F.col("quantity") * F.col("price") * 100).cast("bigint").alias("cents"),
        "placed_at",
    )
    query = (
        orders.writeStream.format("outbox")
        .option("stream", "orders-from-files")  # names the micro-batches in the ledger; unique to this query
        .option("table", "orders")  # gets the rows, in the transaction of the records
        .option("topic", topic)
        .option("key", "customer")
        .option("orderBy", "order_id")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
