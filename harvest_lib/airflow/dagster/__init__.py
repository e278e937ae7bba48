"""Starts Dagster jobs from Airflow, and waits for them."""
