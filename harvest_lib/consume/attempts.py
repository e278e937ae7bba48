"""Failures of the user's functions so far: their messages, their number, and the search for the message to blame.

A message that fails is counted. A failure as a transaction is finalized has no known message. The next transactions
then take a single acknowledgement each; if a transaction of a single message fails, the failure counts for that
message. With several messages, the first are finalized in *trials* that are rolled back, half of the suspects at a
time, until a message is found: with it a trial fails, without it the trial passes. Pure.
"""

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_CAREFUL_TRANSACTIONS = 1_000


class FunctionFailed(Exception):
    """A function of the user raised; its transaction is to be rolled back. `offset` is the offset of the message to
    blame, None without such a message: the error passes, or the message is unknown (`is_anyones`). As a transaction is
    finalized, `taken` and `last` are the number of its messages, and the offset of the last."""

    def __init__(
        self, reason: str, offset: int | None = None, *, is_anyones: bool = False, taken: int = 0, last: int = -1
    ) -> None:
        super().__init__(reason)
        self.reason, self.offset, self.is_anyones = reason, offset, is_anyones
        self.taken, self.last = taken, last


class TrialPassed(FunctionFailed):
    """The trial did not fail: the first messages of an acknowledgement can be finalized without the rest."""


class Attempts:
    """The failures of a shard, for as long as the shard runs."""

    def __init__(self, most: int) -> None:
        """`most` limits the failures of a message."""
        self._most = most
        self._failures: dict[int, tuple[int, str]] = {}  # by offset: their number, and the last reason
        self._passed: list[int] = []  # failed messages that passed in the present transaction
        self._in_a_row = self._careful = 0
        self._good = self._bad = 0  # numbers of first messages of an acknowledgement that pass, and that fail
        self._suspect = (0, "")  # the last message of the failing trial, and the reason

    @property
    def trial(self) -> int | None:
        """Return how many messages of an acknowledgement to finalize as a trial; None to finalize all, and keep it."""
        return (self._good + self._bad) // 2 if self._bad - self._good > 1 else None

    @property
    def one_at_a_time(self) -> bool:
        """Return True if each transaction is to take a single acknowledgement."""
        return self._careful > 0

    @property
    def has_failed(self) -> bool:
        """Return True if a message has failed that is not kept yet."""
        return bool(self._failures)

    @property
    def is_under_way(self) -> bool:
        """Return True if a message was to blame for a failure, and none was kept or parked since."""
        return self.has_failed or self._careful == _CAREFUL_TRANSACTIONS

    @property
    def is_watching(self) -> bool:
        """Return True if the message that fails has to be found."""
        return self.one_at_a_time or self.has_failed

    def spent(self, offset: int) -> str | None:
        """Return the reason to park a message, None if it may be tried (again). Called just before that."""
        if offset not in self._failures:
            return None
        self._passed.append(offset)
        attempts, reason = self._failures[offset]
        return reason if attempts >= self._most else None

    def failed(self, refused: FunctionFailed) -> tuple[int, float]:
        """Count a failure; return the number of attempts, and the seconds to wait before the next attempt."""
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
        """Count a failed finalization of several messages for the message to blame, once it is found."""
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
        """Forget the failures of messages in the transaction: it is kept."""
        while self._passed:
            self._failures.pop(self._passed.pop(), None)
        self._in_a_row, self._careful = 0, max(0, self._careful - 1)
        self._good = self._bad = 0
