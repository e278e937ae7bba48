"""The hooks: they reach a server that an Airflow connection names."""
