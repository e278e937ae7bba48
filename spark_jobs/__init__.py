"""PySpark jobs that write business rows and outbox rows into Postgres, each batch once.

source      the data set, checked and read once
staging     a batch into the staging table, by Spark's JDBC writer
promotion   one transaction: business rows, outbox rows, ledger row
batches     a batch from end to end; what concurrent and repeated runs see
database    connections, table names and how Postgres's refusals are told
session     the Spark session
"""
