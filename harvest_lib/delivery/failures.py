"""Failures of a batch, collected from its records' delivery reports and its producer's calls: the decisive error,
whether a topic or a record is to blame, and the keys of records that are not in Kafka.
"""

from typing import Any

from confluent_kafka import KafkaError

from harvest_lib.delivery.errors import FENCED, NEVER_TAKEN, NO_TOPIC, PURGED, is_fatal, may_pass
from harvest_lib.delivery.protocol import BatchCommitted, BatchFailed, BatchFenced, BatchOutcome
from harvest_lib.delivery.topics import Topics
from harvest_lib.native import UNCONFIRMED, NativeSender

_ABOUT_TOPICS = NEVER_TAKEN | NO_TOPIC | PURGED | {KafkaError.TOPIC_AUTHORIZATION_FAILED}
"""Errors that a change of a topic may cause. A purge is such an error, as librdkafka purges a transaction's records
without a reason."""


class Failures:
    """Failures of the present batch. With `fences`, a fencing error ends the leader."""

    def __init__(self, topics: Topics, *, fences: bool = False) -> None:
        self.first: KafkaError | None = None
        """The decisive error: the first error, unless a later error is more specific."""
        self.failed_keys: set[bytes] | None = None
        """Keys of the failed records, for batches with one record of a key; None if some of the keys are unknown."""
        self._topics = topics
        self._fences = fences
        self._stopped = self._gave_up = False
        self._is_named = self._is_of_row = False  # an error has a known topic or an own record; concerns a row
        self._has_expired = False  # True if a record expired, in the queue or on the wire

    @property
    def any(self) -> bool:
        """Return True if the batch cannot be committed: it failed, or was not handed over completely."""
        return self.first is not None or self._stopped

    @property
    def are_about_topics(self) -> bool:
        """Return True if a change of a topic may have caused the decisive error."""
        return self.first is not None and (self.first.code() in _ABOUT_TOPICS or is_fatal(self.first))

    def clear(self) -> None:
        """Forget the failures of the last batch, whose producer is discarded."""
        self.first, self._stopped, self._gave_up = None, False, False
        self._is_named = self._is_of_row = False

    def stop(self, *, knows_keys: bool = False, gave_up: bool = False) -> None:
        """Note that the batch was not handed over completely, or not acknowledged in time (`gave_up`). If `knows_keys`
        is False, forget the keys of failed records, because these keys may be incomplete."""
        self._stopped, self._gave_up = True, gave_up or self._gave_up
        if not knows_keys:
            self.failed_keys = None

    def take_expired(self) -> bool:
        """Return True if a record has expired since the last call. Such a record may have been on the wire."""
        expired, self._has_expired = self._has_expired, False
        return expired

    def outcome(self) -> BatchOutcome:
        """Return the outcome of the batch so far."""
        if self.first is None:
            return BatchFailed(reason="not acknowledged in time") if self._stopped else BatchCommitted()
        if self._fences and self.first.code() in FENCED:
            return BatchFenced(reason=self.first.str())
        refused = self.first.code() in NEVER_TAKEN
        unnamed = not refused and self._is_of_row and not self._is_named
        return BatchFailed(reason=self.first.str(), refused=refused, unnamed=unnamed)

    def add(self, error: KafkaError) -> None:
        """Note an error. The first error is decisive, because later errors usually report only that a record was purged
        or came after a failed record. But a permanent refusal or a fence replaces the first error: a fenced producer
        first refuses records like any producer with a fatal error, and reports the fence a little later."""
        replaces = error.code() in NEVER_TAKEN and (self.first is None or self.first.code() not in NEVER_TAKEN)
        if self.first is None or replaces or (self._fences and error.code() in FENCED):
            self.first = error

    def add_of_row(self, error: KafkaError) -> None:
        """Note an error of a call that handed over a record. The key of the record is unknown."""
        self._is_of_row, self.failed_keys = True, None
        self.add(error)

    def report(self, error: KafkaError | None, message: Any) -> None:
        """Note the delivery report of a record, with the arguments of the client's callback."""
        if error is None:
            return
        if self.failed_keys is not None:
            key = message.key() if message is not None else None
            if key is None:  # unlike an empty key
                self.failed_keys = None
            else:
                self.failed_keys.add(key)
        self._add_report(message.topic() if message is not None else None, error)

    def report_own(self, what: str, error: KafkaError | None) -> None:
        """Note the delivery report of a record that the delivery itself made, such as a checkpoint. No record of the
        batch is to blame for an error in this report."""
        if error is None:
            return
        self._is_named = True
        if error.code() in NEVER_TAKEN:
            error = KafkaError(KafkaError._FAIL, f"{what} was refused: {error.str()}")
        self.add(error)

    def report_native(self, sender: NativeSender) -> None:
        """Note the failures of records that were handed over natively, and the keys of the failed records. An
        unconfirmed record may or may not be in Kafka, so with such a record the keys become unknown."""
        failures = sender.take_failures()
        if failures and self.failed_keys is not None:
            keys = sender.take_failed_keys()
            if keys is None or any(each.code() == UNCONFIRMED for each, _ in failures):
                self.failed_keys = None
            else:
                self.failed_keys |= keys
        for failure, topic in failures:
            self._add_report(topic, failure)

    def _add_report(self, topic: str | None, error: KafkaError) -> None:
        self._is_of_row = True
        self._has_expired = self._has_expired or error.code() == KafkaError._MSG_TIMED_OUT
        self.add(error)
        if error.code() == UNCONFIRMED:
            self._is_named = True  # no record is to blame
        elif topic and may_pass(error, gave_up=self._gave_up):
            self._is_named = True
            self._topics.blame(topic, error.str())
