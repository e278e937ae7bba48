"""A DAG that audits when harvested messages arrive.

Messages that arrive before the audit's run has started have a single audit. Messages that arrive during an audit have
another audit after it. Connection `harvest_kafka_watch`: `auto.offset.reset=earliest`, `enable.auto.commit=false`, a
group of its own.
"""

import os

from airflow.sdk import AssetWatcher, dag

from harvest_lib.airflow.assets import topic_asset
from harvest_lib.airflow.operators.audit import OutboxAuditOperator
from harvest_lib.airflow.triggers.topic_events import TopicEventTrigger

_TOPIC = os.environ.get("HARVEST_TOPIC", "flights")

harvested_messages = topic_asset(
    os.environ.get("HARVEST_BOOTSTRAP_SERVERS", "localhost:9092"),
    _TOPIC,
    watchers=[
        AssetWatcher(
            name=f"harvested_{_TOPIC}",
            trigger=TopicEventTrigger(topics=[_TOPIC], kafka_config_id="harvest_kafka_watch"),
        )
    ],
)


@dag(
    dag_id="harvest_audit_on_message",
    schedule=[harvested_messages],
    catchup=False,
    max_active_runs=1,
    tags=["harvest"],
    doc_md=__doc__,
)
def audit_on_message() -> None:
    """Audit."""
    OutboxAuditOperator(task_id="audit", topics=[_TOPIC], retries=1)


audit_on_message()
