"""`make demo-spark`: orders pass from files through Spark, outbox and topic to totals, while each process is killed."""
