"""`make demo-pipeline`: a table is copied and followed into Kafka, a second table and Parquet, through ten kills."""
