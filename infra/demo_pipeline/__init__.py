"""`make demo-pipeline`: a table and its changes are copied to Kafka, a second table and Parquet, through ten kills."""
