"""Records the changes of a local database in its shard's recovery log, until another writer takes over.

    take over ─► (the log is played back) ─► record ─► record ─► …
    fences the writer                        False: another writer has begun since, this one commits nothing more
    before it

Promises
- After a new writer has begun, no older writer commits anything, wherever it was frozen: all writers of a shard have
  the same transactional id, so Kafka fences the older writer. So the pages that the new writer plays back are final.
- The outcome of a transaction is never guessed. If the outcome is unknown, the producer is discarded. The next
  `take_over` shows the outcome.
- No transaction stays open, whatever error is raised in it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest_lib.clock import Deadline
from harvest_lib.consume.recovery_log import AUTHOR, HEAD, LogPlace, PagesDigest, first_offset, play_back
from harvest_lib.errors import CheckpointError
from harvest_lib.kafka_client import KafkaProducerProvider, client_settings, refused_settings, translate
from harvest_lib.process import threads
from harvest_lib.sequencing.publisher import bounded_queue

DeliveryReport = Callable[[KafkaError | None, Any], None]

_FULL_SECONDS = 0.05
_LET_GO_SECONDS = 2.0
_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})


class RecoveryLogWriter:
    """Writer of a shard's recovery log. A single thread uses it."""

    def __init__(
        self,
        settings: Mapping[str, object],
        place: LogPlace,
        *,
        timeout_seconds: float = 30.0,
        provider: KafkaProducerProvider = Producer,
    ) -> None:
        """`timeout_seconds` limits each wait for Kafka."""
        self._settings, self._place = settings, place
        self._timeout_seconds = timeout_seconds
        self._provider = provider
        self._producer: Any = None
        self._page_count, self._digest = 0, PagesDigest()

    def take_over(self, database: BinaryIO) -> int:
        """Fence the previous writer, and write the committed pages to the empty file `database`.

        Return the number of pages of the database; 0 if no page was ever recorded. Raises the errors of `first_offset`
        and `play_back`. Raises CheckpointError if another writer takes over during this call.
        """
        self.close()
        begin = first_offset(self._settings, self._place)
        with refused_settings("settings"):
            self._producer = self._provider(client_settings(bounded_queue(self._settings), **self._own_settings()))
        try:
            self._producer.init_transactions(self._timeout_seconds)
        except KafkaException as error:
            self.close()
            raise translate(error.args[0], settings=self._settings) from error
        # All earlier commits are in front of the hand-off record, even if Kafka is late to mark them as committed.
        end = self._hand_off() + 1
        self._page_count, self._digest = play_back(self._settings, self._place, begin=begin, end=end, database=database)
        return self._page_count

    def record(self, pages: Iterable[tuple[int, bytes]], page_count: int) -> bool:
        """Commit the changed pages (number and image) of a database that now has `page_count` pages. Return False if
        this writer was fenced: by the next owner, or by Kafka because the transaction lasted too long.

        Raises KafkaUnavailable or KafkaAccessDenied if the outcome is unknown. Also raises errors of the iterable
        `pages`. After an error or False, call only `take_over`.
        """
        return self._transact(self._records(pages, page_count))

    def superseded(self) -> CheckpointError:
        """Return the error for the case that another owner took over the shard before this process had restored it."""
        return CheckpointError(
            f"{self._place} was taken over by another owner meanwhile",
            evidence="Kafka has fenced this process's producer",
            next_step="nothing, if the new owner works; where two take turns, see that each shard has one owner",
        )

    def close(self) -> None:
        """Close the producer, and drop uncommitted pages. Repeated calls are safe."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        with suppress(KafkaException, SystemError):
            producer.purge()
        # Closing the producer aborts an open transaction, however long that takes. The next owner aborts it anyway.
        closing = threads.start("recorder-close", lambda: _close(producer))
        closing.join(_LET_GO_SECONDS)

    def _own_settings(self) -> dict[str, object]:
        milliseconds = int(self._timeout_seconds * 1000)
        place = self._place
        return {
            "transactional.id": str(place.shard),  # no topic has a slash in it
            "transaction.timeout.ms": 2 * milliseconds,
            "message.timeout.ms": milliseconds,
            "acks": "all",
            "max.in.flight.requests.per.connection": 1,  # or lost records may be called delivered
            "linger.ms": 5,
            "allow.auto.create.topics": False,
        }

    def _hand_off(self) -> int:
        """Write a record that names this process as the author, and return the offset of that record."""
        offsets: list[int] = []

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())

        author = json.dumps({"shard": list(self._place.shard), "author": uuid4().hex})
        if not self._transact([(AUTHOR, author.encode())], on_delivery):
            raise self.superseded()
        return offsets[0]

    def _records(self, pages: Iterable[tuple[int, bytes]], page_count: int) -> Iterator[tuple[str, bytes | None]]:
        for page, image in pages:
            self._digest.note(page, image)
            yield str(page), image
        for page in range(page_count + 1, self._page_count + 1):
            self._digest.note(page, None)
            yield str(page), None
        self._page_count = page_count
        head = {"shard": list(self._place.shard), "page_count": page_count, "digest": str(self._digest)}
        yield HEAD, json.dumps(head).encode()

    def _transact(self, records: Iterable[tuple[str, bytes | None]], on_delivery: DeliveryReport | None = None) -> bool:
        assert self._producer is not None  # noqa: S101 - `take_over` makes it
        is_committed = False
        try:
            self._producer.begin_transaction()
            for key, value in records:
                self._produce(key, value, on_delivery)
            self._producer.commit_transaction(self._timeout_seconds)
            is_committed = True
        except (KafkaException, SystemError) as error:
            why = self._why(error)
            if why.code() not in _FENCED:
                said = "whether this transaction was committed is not known: restore the shard to learn it"
                raise translate(why, settings=self._settings, said=said) from error
        finally:
            if not is_committed:
                self.close()
        return is_committed

    def _produce(self, key: str, value: bytes | None, on_delivery: DeliveryReport | None) -> None:
        deadline = Deadline(self._timeout_seconds)
        while True:
            try:
                self._producer.produce(self._place.log, value, key, self._place.partition, on_delivery)
            except BufferError:
                self._producer.poll(_FULL_SECONDS)
                if deadline.passed:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the queue stays full")) from None
            else:
                return

    def _why(self, error: KafkaException | SystemError) -> KafkaError:
        """Abort a failed transaction, and return its error. A fenced producer refuses calls like a producer with any
        other fatal error, and callbacks may hide the fence. The attempt to abort shows the real error."""
        cause = error if isinstance(error, KafkaException) else error.__cause__
        try:
            if not _is_fenced(cause):
                self._producer.abort_transaction(_LET_GO_SECONDS)
        except KafkaException as refused:
            if _is_fenced(refused):
                cause = refused
        why: KafkaError = cause.args[0] if isinstance(cause, KafkaException) else KafkaError(KafkaError._FATAL)
        return why


def _is_fenced(error: BaseException | None) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _FENCED


def _close(producer: Any) -> None:
    with suppress(KafkaException):
        producer.close()
