"""Progress of a writer through the commit log. A writer first resumes: it writes messages individually. Then it writes
messages in bulk.

Promises
- A message counts as acknowledged when the writer has written it, or when it is certain that the writer does not get
  it. A message is never acknowledged before the messages that precede it in the log.
- If a bulk fails, none of its messages is acknowledged. If a transform fails for a message of a bulk, the messages
  before that message are written and acknowledged.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import HarvestError, PipelineError
from harvest_lib.pipeline.adaptors import Writer
from harvest_lib.pipeline.bounds import BULK_BYTES, Room
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.commit_log.entry import LogEntry
from harvest_lib.pipeline.encoded_messages import UnreadableEntry
from harvest_lib.pipeline.logged_messages import MessageCache, MessageRun
from harvest_lib.pipeline.message import PipelineMessage
from harvest_lib.pipeline.offset_log import OffsetLog
from harvest_lib.pipeline.routing import Routing
from harvest_lib.pipeline.stop_reason import one_line
from harvest_lib.pipeline.transforms import TransformFailed


class WriterProgress:
    """Progress of a writer. A single thread uses it, but any thread may read `position` and `flushed`, and call
    `flush`."""

    def __init__(
        self,
        name: str,
        *,
        log: CommitLog,
        offsets: OffsetLog,
        routing: Routing,
        message_cache: MessageCache | None = None,
        batch_messages: int = 1_000,
        flush_seconds: float = 1.0,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        """Begin at the position in `offsets`. Raises OffsetBeyondLog if the log ends before this position.

        `message_cache` has the messages that were appended last. A bulk of such messages is not read from the log.
        """
        self.name = name
        self._log = log
        self._offsets = offsets
        self._routing = routing
        self._message_cache = message_cache if message_cache is not None else MessageCache(log.end)
        self.bulk_messages = batch_messages
        """Maximum number of log entries per bulk."""
        self._flush_seconds = flush_seconds
        self._clock = clock
        offsets.check(log.end)
        self.position = offsets.position
        """The first offset that is not acknowledged in memory."""
        self.flushed = offsets.position
        """The first offset that is not acknowledged on the disk: earlier offsets stay acknowledged after a kill."""
        self.missed = 0
        """Number of messages that compaction removed, or an operator skipped, before this writer reached them. The
        number is complete after the resume."""
        self._flushed_at = clock()
        self._flushing = threading.Lock()

    def resume(self, writer: Writer, end: int) -> Iterator[PipelineMessage | None]:
        """Write the messages before offset `end` individually.

        Yields each message after it is written, and None for a message that the writer does not get. Raises
        PipelineError if a message is refused; the position stays before that message.
        """
        for entry in self._log.read(self.position, end):
            self.missed += entry.offset - self.position  # compacted and skipped messages leave gaps in the offsets
            message = self._message(entry)
            if message is not None:
                self._write(writer, [message])
            self._acknowledge({entry.key: entry.offset}, entry.offset + 1)
            yield message
        self.missed += max(0, end - self.position)
        self.position = max(self.position, end)

    def bulk(self, writer: Writer, end: int) -> None:
        """Write the next bulk of messages before offset `end`. Raises PipelineError; the messages that were not written
        are not acknowledged."""
        run = self._message_cache.run(self.position, end, self.bulk_messages)
        messages = None if run is None else self._routing.as_it_is(run)
        if run is None or messages is None:
            self._bulk_of_messages(writer, end, run)
            return
        if messages.kinds:
            self._write(writer, messages)
        self._acknowledge(run.newest, run.next)

    def _bulk_of_messages(self, writer: Writer, end: int, run: MessageRun | None) -> None:
        """Write a bulk that needs message objects, because its entries are read from the log or go through
        transforms."""
        entries = self._entries(end) if run is None else run.entries()
        messages: list[PipelineMessage] = []
        failure = None
        for number, entry in enumerate(entries):
            try:
                message = self._message(entry, run)
            except PipelineError as error:
                failure, entries = error, entries[:number]
                break
            if message is not None:
                messages.append(message)
        if messages:
            self._write(writer, messages)
        if entries:
            self._acknowledge({entry.key: entry.offset for entry in entries}, entries[-1].offset + 1)
        if failure is not None:
            raise failure

    def _entries(self, end: int) -> list[LogEntry]:
        """Return the log entries of the next bulk, limited by number and bytes."""
        room, found = Room(self.bulk_messages, BULK_BYTES), []
        for entry in self._log.read(self.position, end):
            found.append(entry)
            if room.take(len(entry.value)):
                break
        return found

    @property
    def whole_batches(self) -> int:
        """Return the end of the last batch that the reader thread has appended completely, as an offset."""
        return self._message_cache.end

    def skip(self, offset: int) -> None:
        """Acknowledge the next message without sending it. Raises PipelineError if the next message is not at
        `offset`."""
        found = None
        if offset < self._log.end:
            found = next(
                (each for each in self._log.read(self.position, offset + 1) if self._is_next(each, offset)), None
            )
        if found is None:
            raise PipelineError(
                f"writer `{self.name}` waits for no message at offset {offset}",
                evidence=f"its position is {self.position}, and the next offset of the log is {self._log.end}",
                next_step="see its position with `harvest pipeline status -f FILE`",
            )
        if found.offset != offset:
            raise PipelineError(
                f"the next message for writer `{self.name}` is not the one at offset {offset}",
                evidence=f"it is the one at offset {found.offset}",
                next_step=f"send that message with `harvest pipeline resume --step --writer {self.name} -f FILE`, or "
                "acknowledge it first",
            )
        self._acknowledge({found.key: found.offset}, found.offset + 1)

    def flush(self) -> None:
        """Flush acknowledged offsets to the disk, so that they survive a crash."""
        with self._flushing:
            position = self.position
            self._offsets.flush()  # it syncs the commit log before it writes
            self.flushed = position
            self._flushed_at = self._clock()

    def flush_if_due(self) -> None:
        """Flush acknowledged offsets if the last flush was at least the flush interval ago."""
        if self.position != self.flushed and self._clock() - self._flushed_at >= self._flush_seconds:
            self.flush()

    def _is_next(self, entry: LogEntry, offset: int) -> bool:
        return entry.offset == offset or self._routing.wants(entry)

    def _message(self, entry: LogEntry, run: MessageRun | None = None) -> PipelineMessage | None:
        try:
            return self._routing.message(entry, run)
        except TransformFailed as error:
            raise PipelineError(
                f"a transform of writer `{self.name}` failed at offset {entry.offset}: {error.name}",
                evidence=f"it {error.reason}",
                next_step="correct the transform and run the pipeline again; or `on_transform_error: park`; or "
                f"`harvest pipeline ack {entry.offset} --without-sending --writer {self.name} -f FILE`",
            ) from error
        except OSError as error:
            raise PipelineError(
                f"a message that failed in a transform of writer `{self.name}` cannot be parked: offset {entry.offset}",
                evidence=f"{error.filename}: {error.strerror}",
                next_step="correct that, and run it again: it resumes there",
            ) from error
        except UnreadableEntry as error:
            raise PipelineError(
                f"writer `{self.name}` cannot be sent offset {entry.offset}: it holds no message",
                evidence=error.evidence,
                next_step=f"{error.next_step}; or go past it: `harvest pipeline ack {entry.offset} --without-sending "
                f"--writer {self.name} -f FILE`",
            ) from error

    def _write(self, writer: Writer, messages: Sequence[PipelineMessage]) -> None:
        try:
            writer.write(messages)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an exception that ends the thread would end the writer unnoticed
            first, last = messages[0].offset, messages[-1].offset
            what = f"offset {first}" if first == last else f"offsets {first} to {last}"
            advice = f"{error.next_step}; then run it again, " if isinstance(error, HarvestError) else "run it again: "
            shown = f"{first}" if first == last else f"{first}..{last}"
            raise PipelineError(
                f"writer `{self.name}` did not take {what}",
                evidence=one_line(error),
                next_step=f"{advice}it goes on one message at a time; `harvest pipeline show {shown} -f FILE` "
                "shows what it got",
            ) from error

    def _acknowledge(self, newest: Mapping[bytes, int], position: int) -> None:
        for namespace, offset in newest.items():
            self._offsets.acknowledge(namespace, offset)
        self.position = position
