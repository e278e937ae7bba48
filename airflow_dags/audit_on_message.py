"""A DAG that audits when a harvested message arrives.

The watcher reads the topic from its end and commits no offset. Messages that it misses are in the next audit anyway. A
backlog of messages starts a single audit. Messages that arrive during an audit start another audit after it.
Connection `harvest_kafka_watch`: `auto.offset.reset=latest`, `enable.auto.commit=false`.
"""

import os

from airflow.providers.apache.kafka.triggers.msg_queue import KafkaMessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher, dag

from harvest_lib.airflow.operators.audit import OutboxAuditOperator

_TOPIC = os.environ.get("HARVEST_TOPIC", "flights")

harvested_messages = Asset(
    name=f"harvested_{_TOPIC}",
    uri=f"harvest://topics/{_TOPIC}",
    watchers=[
        AssetWatcher(
            name=f"harvested_{_TOPIC}",
            trigger=KafkaMessageQueueTrigger(
                topics=[_TOPIC],
                kafka_config_id="harvest_kafka_watch",
                apply_function="harvest_lib.airflow.messages.harvested",
                poll_timeout=1,
                poll_interval=0,  # Airflow would wait after each foreign message, not at the end of the log
                commit_offset=False,
            ),
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
