"""The client of Dagster's webserver, and how a run is started and waited for. Nothing here knows Airflow."""
