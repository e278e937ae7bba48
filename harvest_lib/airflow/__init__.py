"""Parts of DAGs for Airflow 3: an operator that starts Dagster jobs, tasks of the audit, and functions for messages.

provider      description of the package for Airflow: connection type, fields of its form
dagster       `DagsterJobOperator`, its trigger and its hook
audit_tasks   the audit by Spark and its report
messages      functions that Airflow's Kafka provider calls by name

Importing a part registers no DAG. DAGs made from the parts are in the repository's folder `airflow_dags`.
"""
