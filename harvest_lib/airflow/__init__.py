"""A provider for Airflow 3: connections, sensors and operators for an outbox and for Dagster, and parts of DAGs.

provider      description of the package for Airflow: connection types, fields of their forms
hooks         `HarvestHook` for an outbox, `DagsterHook`
sensors       `OutboxDrainedSensor`, `AuditPassedSensor`
operators     `OutboxAppendOperator`, `HarvestDrainOperator`, `OutboxAuditOperator`, `ParkRetryOperator`,
              `SegmentsOperator`, `ReplayOperator`, `DagsterJobOperator`
triggers      what runs in the triggerer for them
dagster       the client of Dagster's webserver, without Airflow
messages      functions that Airflow's Kafka provider calls by name

Importing a part registers no DAG. DAGs made from the parts are in the repository's folder `airflow_dags`.
"""
