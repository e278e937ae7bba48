"""Common parts of all deliveries: default settings of librdkafka, which the user may override, and classes of
errors."""

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException

DEFAULTS = {
    "partitioner": "consistent",
    "queue.buffering.max.messages": 1_000_000,  # more than a batch has, so that only the batch size limits
    "message.max.bytes": 100_000_000,  # so that only the topic's limit applies; brokers read requests up to 105 MB
}

_LARGEST_QUEUE_KBYTES = 1_048_576
"""librdkafka's default of `queue.buffering.max.kbytes`."""


def largest_message(settings: Mapping[str, object]) -> int:
    """Return the size in bytes of the largest record that a producer with `settings` takes."""
    merged = {**DEFAULTS, **settings}
    queue = int(str(merged.get("queue.buffering.max.kbytes", _LARGEST_QUEUE_KBYTES))) * 1024
    return min(int(str(merged["message.max.bytes"])), queue)


def compresses(settings: Mapping[str, object]) -> bool:
    """Return True if a producer with `settings` may compress records."""
    codec = settings.get("compression.type", settings.get("compression.codec", "none"))
    return str(codec).strip().lower() != "none"


ONE_AT_A_TIME = {"max.in.flight.requests.per.connection": 1}
"""For a delivery that does not check each record's report. With several requests on the wire, librdkafka reports the
first request as delivered when the second request is delivered, even if a broker that did not lead yet refused the
first request. The second can be delivered because Kafka accepts a first sequence number other than 0 from a producer
that is new to a partition. See decision 0019."""

SEVERAL_AT_A_TIME = {"max.in.flight.requests.per.connection": 5}
"""The most requests that librdkafka keeps in order. For a delivery that receives each record's report natively, and
whose readers see nothing of a batch with an unconfirmed record. A request is for a single partition. With one request
at a time, a batch would wait for the answers for its partitions one after another."""

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
"""Errors with which Kafka refuses a record in every further attempt too. Other errors pass, or concern all records."""

NO_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)

PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


_TIMED_OUT = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT})


def may_pass(error: KafkaError, *, gave_up: bool) -> bool:
    """Return True if a record's error concerns its topic, and may pass. A purge is such an error if harvest `gave_up`
    waiting for the record."""
    code = error.code()
    is_about_topic = code > 0 or code in _TIMED_OUT or (gave_up and code in PURGED)
    return is_about_topic and code not in NEVER_TAKEN and code not in NO_TOPIC


def is_fatal(error: KafkaError) -> bool:
    """Return True if the producer cannot send any more after this error."""
    return error.fatal() or error.code() == KafkaError._FATAL


_LOST = "returned NULL without setting an exception"

RAISED = (KafkaException, SystemError, AttributeError)
"""Exceptions that a client's call may raise while it serves callbacks: see `raised`."""


def raised(error: KafkaException | SystemError | AttributeError) -> KafkaError:
    """Return the Kafka error behind an exception that a client's call raised while it served callbacks. Raises the
    exception again if it does not come from the client.

    The client raises a fatal error from within `poll` and `flush`, between the callbacks. A purge of records on the
    wire causes such an error, because it leaves a gap. Python then raises one of:
    - KafkaException: the fatal error itself.
    - SystemError with a KafkaException as its cause: a callback ran while the exception was already set. Sometimes the
      client loses the cause on the way, and only the message is left.
    - AttributeError: Python looked up a method for a callback while the exception was set, and took the failed lookup
      for a missing attribute. The object does have the attribute, which distinguishes this case from a bug of harvest.
    """
    if isinstance(error, KafkaException):
        return _kafka_error(error)
    if isinstance(error, AttributeError):
        if _is_missing(error):
            raise error
        return _fatal(error)
    if isinstance(error.__cause__, KafkaException):
        return _kafka_error(error.__cause__)
    if error.__cause__ is None and _LOST in str(error):
        return _fatal(error)
    raise error


FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)
"""Another producer has begun under the same transactional id."""


def _is_missing(error: AttributeError) -> bool:
    """Return True if the object really lacks the attribute."""
    return error.name is None or not hasattr(error.obj, error.name)


def _kafka_error(error: KafkaException) -> KafkaError:
    found: KafkaError = error.args[0]
    return found


def _fatal(error: Exception) -> KafkaError:
    return KafkaError(KafkaError._FATAL, str(error), fatal=True)
