"""The mark loop's requests to the database: one at a time, without waiting."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from harvest_lib.database import say_denied
from harvest_lib.errors import DatabaseAccessDenied, DatabaseError, DatabaseUnavailable
from harvest_lib.source import ClaimSource, SourceThread

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class PendingRequest:
    """The request to the source that is pending, if any, and what to call with its answer.

    `lost` turns True when the database did not answer, and stays so until the caller has opened it again and
    resets it: the outcome of the request is unknown, so no request may rely on it.
    """

    def __init__(self, source: SourceThread) -> None:
        self._source = source
        self._answer: Future[Any] | None = None
        self._then: Callable[[Any], None] | None = None
        self.lost = False
        self._complaint = ""

    @property
    def pending(self) -> bool:
        return self._answer is not None

    def submit(self, call: Callable[[ClaimSource], Answer], then: Callable[[Answer], None] | None = None) -> None:
        """Submit a request; `then` is called with the answer when it is collected."""
        self._answer, self._then = self._source.ask(call), then

    def wait(self, seconds: float) -> None:
        """Wait for the answer, if one is due."""
        if self._answer is not None:
            with suppress(TimeoutError):
                self._answer.exception(seconds)

    def collect(self) -> bool:
        """Collect the answer if there is one. Return False if the request failed and the database is lost from now on.

        Raises every error that is not transient.
        """
        pending, then = self._answer, self._then
        if pending is None or not pending.done():
            return True
        self._answer = self._then = None
        try:
            answer = pending.result()
        except (DatabaseUnavailable, DatabaseAccessDenied) as error:
            self._say(error)
            self.lost = True
            self._source.ask(_close)
            return False
        if then is not None:
            then(answer)
        return True

    def _say(self, error: DatabaseError) -> None:
        """Log what went wrong, unless the last attempt has said the same."""
        if self.lost and error.evidence == self._complaint:
            return
        self._complaint = error.evidence
        if isinstance(error, DatabaseAccessDenied):
            say_denied(error)
        else:
            _log.warning("database_unavailable", extra={"reason": error.evidence})


def _close(source: ClaimSource) -> None:
    source.close()
