"""What every delivery has in common: librdkafka's settings unless the user has others, and which errors do not pass."""

from confluent_kafka import KafkaError

DEFAULTS = {
    "linger.ms": 2,
    "partitioner": "consistent",
    "queue.buffering.max.messages": 1_000_000,  # our window is the limit that counts
}

NEVER_TAKEN = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
    }
)
"""Refusals that would be the same at the next attempt; other errors pass, or concern everything."""

NO_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's own code
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - likewise
    }
)


def is_fatal(error: KafkaError) -> bool:
    """Tell whether the producer never sends again."""
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - librdkafka's own code
