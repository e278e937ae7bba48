"""Dagster, Airflow and Prometheus as services on this machine, with the local stack's Postgres and Kafka."""
