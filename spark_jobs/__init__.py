"""PySpark jobs that write rows to Postgres and its outbox, each batch once, and audit the delivery.

outbox_sink         any frame or stream into an outbox               ─┐
flights_to_outbox   the flights of 2013, a month per batch            ├ run as `python -m spark_jobs.…`
flights_by_day      the same, a day per batch                         │
audit               compares committed records with Kafka            ─┘

data_source         `format("outbox")`: any frame or stream into an outbox, classic or by Spark Connect
sink                batches into Postgres: staged by Spark, promoted in one transaction
example_flights     the flights' data set, and the common parts of both loads
quality             contracts of flights, outbox rows and summaries; expectations of an audit
audit_summary       the result of an audit, readable without Spark
command             options, output and exit codes of the command lines
session             the Spark session
errors              errors that only a Spark job raises
"""
