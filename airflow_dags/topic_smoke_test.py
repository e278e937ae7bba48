"""A DAG that tests a topic: it produces a message, consumes it and waits for it.

Use a topic for tests, not a topic of the harvester: an audit would report the messages as foreign. Connection
`harvest_kafka`: `auto.offset.reset=earliest`, `enable.auto.commit=false`, a group of its own.
"""

import os
from datetime import timedelta
from typing import Any

from airflow.providers.apache.kafka.operators.consume import ConsumeFromTopicOperator
from airflow.providers.apache.kafka.operators.produce import ProduceToTopicOperator
from airflow.providers.apache.kafka.sensors.kafka import AwaitMessageSensor
from airflow.sdk import Param, dag, task

from harvest_lib.errors import KafkaError

_CONNECTION = "harvest_kafka"
_SECONDS = 60


@task(task_id="compare")
def compare(consumed: list[dict[str, Any]], awaited: dict[str, Any]) -> dict[str, Any]:
    """Return the message's coordinates. Raises KafkaError unless it was consumed once, where it was awaited."""
    if consumed != [awaited]:
        raise KafkaError(
            "the message that was produced was not read back once",
            evidence=f"consumed {consumed}, awaited {awaited}",
            next_step="check the topic's retention, and whether another process writes to it",
        )
    return awaited


@dag(
    dag_id="harvest_topic_smoke_test",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params={"topic": Param(os.environ.get("HARVEST_SMOKE_TOPIC", "harvest-smoke-test"), type="string", minLength=1)},
    default_args={"execution_timeout": timedelta(seconds=2 * _SECONDS)},
    tags=["harvest"],
    doc_md=__doc__,
)
def topic_smoke_test() -> None:
    """Produce, consume without committing, await and commit, compare."""
    produce = ProduceToTopicOperator(
        task_id="produce",
        kafka_config_id=_CONNECTION,
        topic="{{ params.topic }}",
        producer_function="harvest_lib.airflow.messages.smoke_message",
        producer_function_args=["{{ run_id }}"],
        delivery_callback="harvest_lib.airflow.messages.delivered",
    )
    consume = ConsumeFromTopicOperator(
        task_id="consume",
        kafka_config_id=_CONNECTION,
        topics=["{{ params.topic }}"],
        apply_function="harvest_lib.airflow.messages.smoke_answer",
        apply_function_args=["{{ run_id }}"],
        return_apply_function_results=True,
        commit_cadence="never",  # the next task reads the same messages
        poll_timeout=5,
    )
    wait = AwaitMessageSensor(
        task_id="await",
        kafka_config_id=_CONNECTION,
        topics=["{{ params.topic }}"],
        apply_function="harvest_lib.airflow.messages.smoke_answer",
        apply_function_args=["{{ run_id }}"],
        poll_interval=0,
        timeout=_SECONDS,
    )
    produce >> consume >> wait
    compare(consume.output, wait.output)  # type: ignore[arg-type]  # outputs stand for their values


topic_smoke_test()
