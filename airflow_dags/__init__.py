"""DAGs for Airflow 3 around the harvester, one module each, and what they are made of.

    run_dagster_job.py      a Dagster job is started and waited for, without a worker being held
    audit_on_message.py     a harvested message starts the audit
    topic_smoke_test.py     a topic is written to, read from and waited on
    nightly_audit.py        the audit every night, with a report

Where things are comes from the environment: `DAGSTER_URL`, `HARVEST_DSN`, `HARVEST_BOOTSTRAP_SERVERS` (which the audit
reads) and the Airflow connection `harvest_kafka` (`AIRFLOW_CONN_HARVEST_KAFKA`). No DAG holds a secret.
"""
