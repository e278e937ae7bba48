"""Failures of the user's functions so far: how often each message failed, and the search for the message to blame.

Each failure of a message is counted. If finalizing a transaction fails, the message to blame is unknown. Each of the
next transactions then takes the messages of a single acknowledgement. If such a transaction fails with a single
message, the failure counts for this message. If it fails with several messages, a binary search follows. Its *trials*
finalize only the first messages of the acknowledgement, and are always rolled back. The message to blame is the last
message of the shortest trial that fails. Pure, no I/O.
"""

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_CAREFUL_TRANSACTIONS = 1_000


class FunctionFailed(Exception):
    """A function of the user raised an error, so its transaction has to be rolled back. `offset` is the offset of the
    message to blame; None if no message is to blame, because the error passes by itself. With `is_anyones`, None means
    that the message is unknown. For a failed finalization, `taken` is the number of messages in the transaction, and
    `last` is the last message's offset."""

    def __init__(
        self, reason: str, offset: int | None = None, *, is_anyones: bool = False, taken: int = 0, last: int = -1
    ) -> None:
        super().__init__(reason)
        self.reason, self.offset, self.is_anyones = reason, offset, is_anyones
        self.taken, self.last = taken, last


class TrialPassed(FunctionFailed):
    """A trial did not fail: the first messages of an acknowledgement can be finalized without its other messages."""


class Attempts:
    """Counts of the failures of a shard's messages, while the shard runs."""

    def __init__(self, most: int) -> None:
        """`most` is the number of failures after which a message is parked."""
        self._most = most
        self._failures: dict[int, tuple[int, str]] = {}  # offset -> number of failures, last reason
        self._passed: list[int] = []  # offsets of failed messages that this transaction tries or parks
        self._in_a_row = self._careful = 0
        self._good = self._bad = 0  # numbers of first messages with which a trial passes, and fails
        self._suspect = (0, "")  # the last message of the failing trial, and the reason

    @property
    def trial(self) -> int | None:
        """Return the number of an acknowledgement's first messages that the next trial finalizes. Return None if there
        is no trial: then all messages are finalized and committed."""
        return (self._good + self._bad) // 2 if self._bad - self._good > 1 else None

    @property
    def one_at_a_time(self) -> bool:
        """Return True if each transaction has to take the messages of a single acknowledgement."""
        return self._careful > 0

    @property
    def has_failed(self) -> bool:
        """Return True if a failed message is not yet in a committed transaction."""
        return bool(self._failures)

    @property
    def is_under_way(self) -> bool:
        """Return True if a message that caused a failure is neither committed nor parked yet. The message may be
        unknown."""
        return self.has_failed or self._careful == _CAREFUL_TRANSACTIONS

    @property
    def is_watching(self) -> bool:
        """Return True if the message to blame has to be found, so that messages are checked one by one."""
        return self.one_at_a_time or self.has_failed

    def spent(self, offset: int) -> str | None:
        """Return the reason to park a message; None if the message may be tried (again). Call this just before the
        message is parked or tried."""
        if offset not in self._failures:
            return None
        self._passed.append(offset)
        attempts, reason = self._failures[offset]
        return reason if attempts >= self._most else None

    def failed(self, refused: FunctionFailed) -> tuple[int, float]:
        """Count a failure. Return two values: the number of failed attempts so far (0 for a trial that passed), and the
        seconds to wait before the next attempt."""
        self._passed.clear()
        self._narrow(refused)
        if isinstance(refused, TrialPassed) and refused.offset is None:
            return 0, 0.0
        self._in_a_row += 1
        if refused.is_anyones:
            self._careful = _CAREFUL_TRANSACTIONS
        attempts = self._in_a_row
        if refused.offset is not None:
            attempts = self._failures.get(refused.offset, (0, ""))[0] + 1
            self._failures[refused.offset] = (attempts, refused.reason)
        return attempts, min(_FIRST_PAUSE_SECONDS * 2.0 ** min(attempts - 1, 10), _LONGEST_PAUSE_SECONDS)

    def _narrow(self, refused: FunctionFailed) -> None:
        """Narrow the search for the message to blame. If the search has found the message, put its offset into
        `refused`."""
        if isinstance(refused, TrialPassed):
            self._good = refused.taken
        elif refused.offset is None and refused.taken > 1 and self.one_at_a_time:
            self._bad, self._suspect = refused.taken, (refused.last, refused.reason)
        else:
            self._good = self._bad = 0
        if self._bad - self._good == 1:
            refused.offset, refused.reason = self._suspect
            self._good = self._bad = 0

    def kept(self) -> None:
        """Note that the transaction was committed, and forget the failures of its messages."""
        while self._passed:
            self._failures.pop(self._passed.pop(), None)
        self._in_a_row, self._careful = 0, max(0, self._careful - 1)
        self._good = self._bad = 0
