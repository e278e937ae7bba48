"""DAGs for Airflow 3 around the harvester, one module each, and their parts.

    run_dagster_job.py      starts a Dagster job and waits for it without occupying a worker
    audit_on_message.py     starts the audit when a harvested message arrives
    topic_smoke_test.py     writes to a topic, reads from it and waits on it
    nightly_audit.py        audits every night, with a report
    flights_day.py          loads a day of flights, waits until it is harvested, audits

Addresses come from the environment: `DAGSTER_URL`, `HARVEST_DSN`, `HARVEST_BOOTSTRAP_SERVERS` (which the audit
reads) and the Airflow connection `harvest_kafka` (`AIRFLOW_CONN_HARVEST_KAFKA`). No DAG holds a secret.
"""
