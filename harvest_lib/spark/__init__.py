"""Parts of PySpark jobs that write rows to Postgres and its outbox, each batch once, and audit the delivery.

outbox_sink         any frame or stream into an outbox               ─┐
flights.by_month    the flights of 2013, a month per batch            │ run as `python -m harvest_lib.spark.…`
flights.by_day      the same, a day per batch                         │
audit               compares committed records with Kafka             │
replay              fills a new subscription's topics                ─┘

data_source         `format("outbox")`: any frame or stream into an outbox, classic or by Spark Connect
sequenced           messages of `delivery: sequenced` that are committed
sink                batches into Postgres: staged by Spark, promoted in one transaction
flights             the flights' data set, and the common parts of both loads
quality             contracts of flights, outbox rows and summaries; expectations of an audit
summaries           the sum of the batches of a run
listener            tells what each micro-batch of a stream did
command             options, output and exit codes of the command lines
session             the Spark session
errors              errors that only a Spark job raises
tested              the versions of Spark that are not refused
"""
