"""Calls the user's functions, and finds the message to blame for an error of a function.

Each call is made within the open transaction. While the message to blame is unknown, each transaction takes a single
acknowledgement and is checked after every message (`Attempts`).
"""

import os
import traceback
from collections.abc import Callable, Iterable
from typing import TypeGuard

from harvest_lib.clock import boot_seconds
from harvest_lib.consume.attempts import Attempts, FunctionFailed, TrialPassed
from harvest_lib.consume.limits import ShardLimits
from harvest_lib.consume.store import StateRefused, Store, reason_of
from harvest_lib.consume.tracing import TransactionSpan
from harvest_lib.consume.transaction import Application, GroupApplication, Transaction, require_done
from harvest_lib.errors import KafkaError
from harvest_lib.sequencing.batch import Batch, Message
from harvest_lib.sequencing.publisher import PublishRefused

_NOT_OPEN = "the function ended the transaction, left a statement of it unfinished, or went on after one had failed"


_forks = 0
"""Number of forks between the start of Python and this process."""


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - a count of the whole process
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class OpenTransaction:
    """The open transaction of a shard, with the number of messages that were passed to the user's functions in it."""

    def __init__(self, transaction: Transaction, began: float, span: TransactionSpan | None = None) -> None:
        self.transaction, self.began = transaction, began
        self._span = span
        self.taken = 0
        self.last: int | None = None
        self.about: Message | None = None
        """The message with which the user's function is called; None if the function gets a group of messages."""
        self.parked: list[tuple[int, str]] = []

    @property
    def only(self) -> int | None:
        """Return the offset of the transaction's only message; None if the transaction does not have exactly one."""
        return self.last if self.taken == 1 else None

    def linked(self, messages: Iterable[Message]) -> Iterable[Message]:
        """Return the same messages. If there is a span, link the span to the writers of the messages."""
        return messages if self._span is None else self._span.take(messages)

    def end_span(self, error: str = "") -> None:
        """End the span if there is a span that has not ended."""
        if self._span is not None:
            self._span.end(self.taken, error)
            self._span = None

    def is_over(self, limits: ShardLimits, *, is_idle: bool) -> bool:
        lasted = boot_seconds() - self.began
        return lasted >= limits.max_txn_duration_seconds or (is_idle and lasted >= limits.min_txn_duration_seconds)


class Dispatch:
    """Hands the messages of a shard to the application.

    Exceptions of the application's functions are raised as FunctionFailed. SystemExit, CancelledError and panics of
    extensions are raised as FunctionFailed too, because they would end the thread unseen. Errors of Kafka are raised
    unchanged, because no message causes them.
    """

    def __init__(self, application: Application, store: Store, attempts: Attempts) -> None:
        self._application, self._store, self._attempts = application, store, attempts
        self._by_groups = application if isinstance(application, GroupApplication) else None
        self._forks = _forks

    def takes_at_once(self, group: Iterable[Message]) -> TypeGuard[Batch]:
        """Return True if the application gets the whole group in a single call. Return False for a group with a single
        message, and for a group that is read again from the log, because such a group may have any length."""
        is_batch = self._by_groups is not None and isinstance(group, Batch) and len(group) > 1
        return is_batch and not self._attempts.is_watching

    def take_at_once(self, opened: OpenTransaction, group: Batch) -> None:
        assert self._by_groups is not None, "call takes_at_once first"  # noqa: S101
        opened.about = None
        opened.linked(group)
        try:
            _call(self._by_groups.consume_messages, opened.transaction, group)
        except BaseException as error:
            self._pass_on(error)
            raise self.refused(error, None, is_anyones=True) from error
        self._end_child()
        if not self._store.is_open:
            raise FunctionFailed(_NOT_OPEN, is_anyones=True)
        opened.taken += len(group)
        opened.last = group.offsets[-1]

    def take(self, opened: OpenTransaction, messages: Iterable[Message]) -> None:
        """Call the function for each of `messages`, which must not be empty."""
        messages = opened.linked(messages)
        if self._attempts.is_watching:
            self._take_with_care(opened, messages)
        else:
            self._take(opened, messages)

    def _take(self, opened: OpenTransaction, messages: Iterable[Message]) -> None:
        """Call the function for each message. Check only after the last message that the transaction is still open."""
        consume_message: Callable[..., object] = self._application.consume_message
        transaction, taken = opened.transaction, 0
        for message in messages:
            opened.about = message
            try:
                if (returned := consume_message(transaction, message)) is not None:
                    require_done(returned)
            except BaseException as error:
                self._pass_on(error)
                is_known = not taken or self._store.is_open
                raise self.refused(error, message.offset if is_known else None, is_anyones=not is_known) from error
            if _forks != self._forks:
                self._end_child()
            taken += 1
        last = opened.about.offset if opened.about is not None else None
        if not self._store.is_open:
            raise FunctionFailed(_NOT_OPEN, last if taken == 1 else None, is_anyones=taken > 1)
        opened.taken += taken
        opened.last = last

    def _take_with_care(self, opened: OpenTransaction, messages: Iterable[Message]) -> None:
        """Call the function for each message, and check the transaction after each call, to find the message that
        fails. Park messages that failed too often."""
        for message in messages:
            if opened.taken == self._attempts.trial:
                return
            if (reason := self._attempts.spent(message.offset)) is not None:
                self._store.park(message, reason)
                opened.parked.append((message.offset, reason))
                continue
            opened.about = message
            try:
                _call(self._application.consume_message, opened.transaction, message)
            except BaseException as error:
                self._pass_on(error)
                raise self.refused(error, message.offset) from error
            self._end_child()
            if not self._store.is_open:
                raise FunctionFailed(_NOT_OPEN, message.offset)
            try:
                self._store.flush()
            except StateRefused as error:
                raise self.refused(error, message.offset) from error
            opened.taken += 1
            opened.last = message.offset

    def finalize(self, opened: OpenTransaction) -> None:
        """Call the user's `finalize_txn`, if at least one message of the transaction was passed to the user."""
        opened.about = None
        if not opened.taken:
            return
        try:
            _call(self._application.finalize_txn, opened.transaction)
        except BaseException as error:
            self._pass_on(error)
            raise self._not_finalized(opened, self.refused(error, opened.only, is_anyones=True)) from error
        self._end_child()
        if not self._store.is_open:
            raise self._not_finalized(opened, FunctionFailed(_NOT_OPEN, opened.only, is_anyones=True))
        try:
            self._store.flush()
        except StateRefused as error:
            raise self._not_finalized(opened, self.refused(error, opened.only, is_anyones=True)) from error
        if self._attempts.trial is not None:
            raise TrialPassed("", taken=opened.taken)

    def _pass_on(self, error: BaseException) -> None:
        """Raise an error of Kafka again, because no message is to blame for such an error."""
        self._end_child(error)
        if isinstance(error, KafkaError):
            raise error

    def _end_child(self, error: BaseException | None = None) -> None:
        """End this process if it is a child that the user's function forked. The child has its parent's connections,
        and would end the parent's transaction."""
        if _forks != self._forks:
            code = error.code if isinstance(error, SystemExit) else int(error is not None)
            os._exit(code if isinstance(code, int) else int(code is not None))

    def _not_finalized(self, opened: OpenTransaction, failed: FunctionFailed) -> FunctionFailed:
        if failed.is_anyones and opened.last is not None:
            failed.taken, failed.last = opened.taken, opened.last
        return failed

    def refused(self, error: BaseException, offset: int | None, *, is_anyones: bool = False) -> FunctionFailed:
        """Return the failure for an error of a user's function, or of a message that the function published."""
        reason = str(error) if isinstance(error, StateRefused) else reason_of(error)
        _let_go(error)
        if self._store.will_pass(error):
            return FunctionFailed(reason)
        if isinstance(error, PublishRefused) and error.about is not None:  # an earlier call may have published it
            return FunctionFailed(reason, error.about)
        return FunctionFailed(reason, offset, is_anyones=is_anyones)


def _call(function: Callable[..., object], *arguments: object) -> None:
    if (returned := function(*arguments)) is not None:
        require_done(returned)


def _let_go(error: BaseException) -> None:
    """Clear the stack frames of an error and its causes: they may hold partly read results, which keep the connection
    locked."""
    handled: BaseException | None = error
    while handled is not None:
        traceback.clear_frames(handled.__traceback__)
        handled = handled.__context__
