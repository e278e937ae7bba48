"""Trouble that keeps a member of the pool from proving that it leads. It is reported in the log and in the member's
status.

Each kind of trouble is logged once until the member leads, because librdkafka retries by itself and reports the same
error after each attempt.
"""

import logging

from confluent_kafka import KafkaError

from harvest_lib.clock import boot_seconds

_log = logging.getLogger(__name__)

_FRESH_SECONDS = 30.0

_OF_A_REBALANCE = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._NO_OFFSET,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._DESTROY,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._STATE,
}
"""Errors that are no trouble: the group rebalances, or the client is closing."""


class Trouble:
    """The troubles of a member since it last led. A single thread adds troubles, but any thread may read `text`."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, float]] = {}
        self._others: tuple[str, float] | None = None

    def note(self, what: str, error: KafkaError, evidence: str = "") -> None:
        """Note an error of the action `what`, with further evidence, if the error is trouble: not of a rebalance or a
        close."""
        if error.code() not in _OF_A_REBALANCE:
            reason = "; ".join(part for part in dict.fromkeys((error.str(), evidence)) if part)
            self.say(f"{what}:{error.name()}", f"{what}: {reason} ({error.name()})")

    def say(self, kind: str, reason: str) -> None:
        """Note a trouble. Log the trouble if no trouble of the same `kind` was logged before."""
        if kind not in self._said:
            _log.warning("election_troubled", extra={"reason": reason})
        self._said[kind] = (reason, boot_seconds())

    def report(self, reason: str) -> None:
        """Note a trouble that is logged elsewhere, and that does not end when the member leads."""
        self._others = (reason, boot_seconds())

    def clear(self) -> None:
        """Forget the troubles that were noted by `note` and `say`, because the member leads now."""
        self._said.clear()

    @property
    def text(self) -> str:
        """Return the recent troubles, newest first; empty if there are none."""
        all_of_them = [*self._said.values(), *([self._others] if self._others is not None else [])]
        fresh = [(at, reason) for reason, at in all_of_them if boot_seconds() - at < _FRESH_SECONDS]
        return "; ".join(reason for _, reason in sorted(fresh, reverse=True))
