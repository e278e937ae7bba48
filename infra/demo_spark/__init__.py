"""`make demo-spark`: orders go from files by Spark, outbox and topic into totals, while each joint is killed."""
