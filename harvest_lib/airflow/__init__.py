"""A provider for Airflow 3: connections, sensors and operators for an outbox and for Dagster, and parts of DAGs.

provider      description of the package for Airflow: connection types, fields of their forms
hooks         `HarvestHook` for an outbox, `DagsterHook`
sensors       `OutboxDrainedSensor`, `AuditPassedSensor`
operators     `OutboxAppendOperator`, `HarvestDrainOperator`, `OutboxAuditOperator`, `ParkRetryOperator`,
              `SegmentsOperator`, `ReplayOperator`, `RunPerEventOperator`, `DagsterJobOperator`
triggers      what runs in the triggerer for them; `OutboxEventTrigger`, `TopicEventTrigger` for watchers of assets
links         the link from a task to its Dagster run
assets        assets for outboxes and topics
dagster       the client of Dagster's webserver, without Airflow
messages      functions for single Kafka messages

Importing a part registers no DAG. DAGs made from the parts are in the repository's folder `airflow_dags`.
"""
