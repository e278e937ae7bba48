"""PySpark jobs: rows into Postgres and its outbox, each batch once; and the audit of what became of them.

outbox_sink         any frame or stream into an outbox               ─┐
flights_to_outbox   the flights of 2013, a month per batch            ├ run as `python -m spark_jobs.…`
flights_by_day      the same, a day per batch                         │
audit               of what was committed, what is in Kafka?         ─┘

records             the declaration: what a row becomes in the outbox
plan                what will be written where, checked before Spark starts a job
batches             a batch from end to end; what concurrent and repeated runs see
content             what a frame holds, as count and hash
staging             a batch into the staging table, by Spark's JDBC writer
promotion           one transaction: business rows, outbox rows, ledger row
statement           the promotion as one statement
queries             all other SQL
source              the flights' data set, checked and read once
flights             what both loads of the flights have in common

command             how the command lines read options, tell and end
session             the Spark session
database            connections, table names and how Postgres's refusals are told
errors              what only a Spark job can refuse

audit_summary       what an audit found, for who has no Spark, too
contracts           what flights, outbox rows and summaries must be, for pandas and Spark
expectations        what an audit must show, as an expectation suite with pages
"""
