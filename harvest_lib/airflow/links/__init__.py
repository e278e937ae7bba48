"""The links: buttons of a task in Airflow's UI."""
