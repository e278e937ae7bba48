"""Dagster, Airflow and Prometheus as services of this machine, on the Postgres and the Kafka of the local stack."""
