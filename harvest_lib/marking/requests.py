"""How the mark loop asks the database: one request at a time, without waiting."""

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
    """Questions to the source, one at a time, each with what is to be done with its answer.

    `lost` turns True when the database did not answer, and stays so until whoever opened it again says otherwise: the
    outcome of what was asked is unknown, so nothing may be asked that rests on it.
    """

    def __init__(self, source: SourceThread) -> None:
        self._source = source
        self._question: Future[Any] | None = None
        self._then: Callable[[Any], None] | None = None
        self.lost = False
        self._complaint = ""

    @property
    def pending(self) -> bool:
        return self._question is not None

    def put(self, call: Callable[[ClaimSource], Answer], then: Callable[[Answer], None] | None = None) -> None:
        """Ask; `then` gets the answer when it is heard."""
        self._question, self._then = self._source.ask(call), then

    def wait(self, seconds: float) -> None:
        """Wait for the answer, if one is due."""
        if self._question is not None:
            with suppress(TimeoutError):
                self._question.exception(seconds)

    def hear(self) -> bool:
        """Take the answer if there is one; False if there was none and the database is lost from now on.

        Raises whatever error will not pass by itself.
        """
        question, then = self._question, self._then
        if question is None or not question.done():
            return True
        self._question = self._then = None
        try:
            answer = question.result()
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
