"""Functions for single Kafka messages. Airflow's Kafka provider finds those that DAGs apply by their names."""

import json
from collections.abc import Iterator
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message

from harvest_lib.errors import KafkaError
from harvest_lib.record.header import headers_of, origin_of


def harvested(message: Message) -> dict[str, Any] | None:
    """Return a harvested message's coordinates in Kafka, its outbox id and its leader; None for a message without the
    harvester's header."""
    found = origin_of(headers_of(message))
    if found is None:
        return None
    leader, outbox_id = found
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "outbox_id": outbox_id,
        "leader_id": str(leader),
    }


def event_of(found: dict[str, Any], key: bytes | None) -> dict[str, Any]:
    """Return the event of a harvested message, whose coordinates are in `found`. Bytes of a key that are no UTF-8 are
    replaced."""
    event = {"id": f"{found['topic']}:{found['outbox_id']}", **found}
    if key is not None:
        event["key"] = key.decode(errors="replace")
    return event


def smoke_message(mark: str) -> Iterator[tuple[str, str]]:
    """Yield key and value of the message of a smoke test."""
    yield mark, json.dumps({"smoke_test": mark})


def smoke_answer(mark: str, message: Message) -> dict[str, Any] | None:
    """Return the coordinates of a message if it is the message of this smoke test, else None."""
    if message.error() is not None or message.key() != mark.encode():
        return None
    return {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}


def delivered(error: ClientError | None, message: Message) -> None:
    """Raise KafkaError if a message was not delivered. Without this callback the provider would only log the error."""
    if error is not None:
        raise KafkaError(
            f"topic {message.topic()} did not take the message",
            evidence=error.str(),
            next_step="check that the topic exists (`harvest` never creates one automatically) and accepts writes",
        )
